"""The picture of NLL against seconds in a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from plausible.report.scatter import HEIGHT, scatter
from plausible.report.tables import Estimate

POINTS = {
    "map": (1.0, 0.087), "map-temperature": (0.5, 0.060), "deep-ensemble": (4.0, 0.090), "swag": (1.1, 0.082),
    "multiswag": (5.0, 0.081), "hmc": (16.0, 0.050),
}  # fmt: skip


def rows_of(points):
    return {name: {"seconds": Estimate(s, 0.1), "nll": Estimate(loss, 0.1)} for name, (s, loss) in points.items()}


def printed(points, width=80) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(scatter(rows_of(points)))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def places(lines: list[str]) -> dict[str, tuple[int, int]]:
    field = lines[1 : HEIGHT + 1]
    return {c: (row, column) for row, line in enumerate(field) for column, c in enumerate(line[9:]) if c.isalpha()}


def test_left_is_quicker_and_lower_is_better():
    where = places(printed(POINTS))
    by_time = sorted(zip("abcdef", POINTS.values(), strict=True), key=lambda item: item[1][0])
    columns = [where[letter][1] for letter, _ in by_time]
    assert columns == sorted(columns) and columns[0] == 0 and columns[-1] == 59
    by_loss = sorted(zip("abcdef", POINTS.values(), strict=True), key=lambda item: -item[1][1])
    lines = [where[letter][0] for letter, _ in by_loss]
    assert lines == sorted(lines) and lines[0] == 0 and lines[-1] == HEIGHT - 1


def test_seconds_are_drawn_by_their_logarithm():
    where = places(printed({"a": (1.0, 0.1), "b": (10.0, 0.2), "c": (100.0, 0.3)}))
    assert where["b"][1] - where["a"][1] == pytest.approx(where["c"][1] - where["b"][1], abs=1)


def test_it_is_small_plain_and_names_every_method():
    lines = printed(POINTS)
    assert len(lines) <= 14 and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "\x1b" not in text and all(f"{letter} {name}" in text for letter, name in zip("abcdef", POINTS, strict=True))
    assert "0.090" in text and "0.050" in text and "1 s" in text


def test_methods_of_equal_numbers_stand_side_by_side():
    where = places(printed({name: (1.0, 0.1) for name in ("one", "two", "three")}))
    assert len({row for row, _ in where.values()}) == 1
    columns = sorted(column for _, column in where.values())
    assert columns == list(range(columns[0], columns[0] + 3))


def test_a_method_without_a_number_is_left_out_of_the_field_and_not_of_the_legend():
    lines = printed({"fine": (1.0, 0.1), "broken": (2.0, float("nan"))})
    assert set(places(lines)) == {"a"} and "b broken" in lines[-1]
