"""NLL against seconds in the report."""

import re
from itertools import combinations

from plausible.report.tables import Estimate
from plausible.report.trade_off import DOT, LETTER, LINE, place_names, trade_off

CROWD = {"map": (180.0, 70.0), "map-temperature": (140.0, 70.0), "swag": (185.0, 75.0), "hmc": (600.0, 250.0)}


def boxes(dots, names):
    for name, (x, y) in dots.items():
        yield name, (x - DOT, y - DOT, x + DOT, y + DOT)
    for name, (x, y) in names.items():
        yield name, (x, y - LINE + 3, x + LETTER * len(name), y + 3)


def test_names_lie_on_no_dot_and_on_no_other_name():
    found = list(boxes(CROWD, place_names(CROWD)))
    for (_, one), (_, other) in combinations(found[len(CROWD) :], 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for _, name in found[len(CROWD) :]:
        for _, dot in found[: len(CROWD)]:
            assert name[2] <= dot[0] or dot[2] <= name[0] or name[3] <= dot[1] or dot[3] <= name[1]


def test_a_name_that_would_leave_the_picture_goes_to_the_other_side():
    (x, _), (at, _) = CROWD["hmc"], place_names(CROWD)["hmc"]
    assert at + LETTER * len("hmc") <= 640 and place_names({"far-right": (620.0, 100.0)})["far-right"][0] < 620
    assert at > x


def test_a_name_does_not_lie_on_the_line_of_anothers_error():
    dots = {"map-temperature": (140.0, 70.0), "map": (200.0, 120.0)}
    line = (199.0, 50.0, 201.0, 190.0)
    (plain, _), (moved, _) = (place_names(dots, others)["map-temperature"] for others in ([], [line]))
    assert plain < 199 < plain + LETTER * len("map-temperature") and moved + LETTER * len("map-temperature") <= 199


def test_every_method_is_a_dot_with_its_numbers_and_lower_is_better():
    rows = {
        "good": {"seconds": Estimate(2.0, 0.1), "nll": Estimate(0.10, 0.01)},
        "bad": {"seconds": Estimate(1.0, 0.1), "nll": Estimate(0.30, float("nan"))},
        "broken": {"seconds": Estimate(1.0, 0.1), "nll": Estimate(float("nan"), float("nan"))},
    }
    text = trade_off(rows)
    assert 'data-tip="good: NLL 0.100 ± 0.010, 2.0 s"' in text and 'data-tip="bad: NLL 0.300, 1.0 s"' in text
    (good_x, good_y), (bad_x, bad_y) = (tuple(map(float, p)) for p in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text))
    assert good_x > bad_x and good_y > bad_y  # down the picture
    assert "broken" not in text
