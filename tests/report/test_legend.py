"""What stands under a table."""

import pytest

import plausible as pl
from plausible.report.legend import cautions, marks


def test_of_numbers_it_says_how_much_chance_moves_the_coverage():
    found = pl.compare("diabetes", ["map"], seeds=2, epochs=4, progress=False)
    (line,) = cautions(found)
    # 89 examples at 0.9: the root of 0.9 x 0.1 / 89.
    assert "with 89 test examples chance alone moves it by about 3.2%" in line
    assert marks(found) == ("± one standard error over seeds",)  # one method has no best


@pytest.mark.parametrize("name", ["wine", "breast-cancer"])
def test_without_outliers_there_is_nothing_to_caution_against(name):
    assert cautions(pl.compare(name, ["map"], seeds=1, epochs=4, progress=False)) == ()
