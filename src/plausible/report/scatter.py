"""NLL against seconds as letters in a terminal: one letter a method."""

from __future__ import annotations

import math
from string import ascii_letters
from typing import TYPE_CHECKING

from .charts import ticks
from .tables import Rows

if TYPE_CHECKING:
    from rich.text import Text

WIDTH, HEIGHT = 60, 8  # of the field with the letters, in characters
GUTTER = 9  # before it, for the scale
LEGEND_WIDTH = 78


def scatter(rows: Rows) -> Text:
    """Lower is better, left is quicker; the seconds are drawn by their logarithm."""
    from rich.text import Text

    points = {
        method: (math.log(max(row["seconds"].mean, 1e-3)), row["nll"].mean)
        for method, row in rows.items()
        if math.isfinite(row["nll"].mean)
    }
    letters = dict(zip(rows, ascii_letters, strict=False))
    left, right = _ends([x for x, _ in points.values()], least=math.log(2))
    bottom, top = _ends([y for _, y in points.values()], least=1e-3)
    field = [[" "] * WIDTH for _ in range(HEIGHT)]
    for method, (x, y) in points.items():
        row = round((top - y) / (top - bottom) * (HEIGHT - 1))
        column = round((x - left) / (right - left) * (WIDTH - 1))
        _put(field[row], column, letters.get(method, "+"))
    scale = {0: top, HEIGHT // 2: top - (top - bottom) * (HEIGHT // 2) / (HEIGHT - 1), HEIGHT - 1: bottom}
    text = Text("NLL against seconds to fit: lower is better, further left is quicker\n", style="bold")
    for number, line in enumerate(field):
        label = f"{scale[number]:.3f} ┤" if number in scale else "│"
        text.append(label.rjust(GUTTER), style="dim")
        text.append("".join(line).rstrip() + "\n", style="bold cyan")
    text.append(" " * (GUTTER - 1) + "└" + "─" * WIDTH + "\n" + _seconds(left, right) + "\n", style="dim")
    return text.append(_legend(letters), style="default")


def _ends(values: list[float], least: float) -> tuple[float, float]:
    """The smallest and the largest, moved apart where they are closer than `least`."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = max(0.0, least - (high - low)) / 2
    return low - room, high + room


def _put(line: list[str], column: int, letter: str) -> None:
    """In the free place that is nearest."""
    free = [place for place, taken in enumerate(line) if taken == " "]
    if free:
        line[min(free, key=lambda place: abs(place - column))] = letter


def _seconds(left: float, right: float) -> str:
    line = [" "] * (GUTTER + WIDTH + 8)
    for value in ticks(math.exp(left), math.exp(right), logarithmic=True):
        label = f"{value:g} s"
        column = GUTTER + round((math.log(value) - left) / (right - left) * (WIDTH - 1))
        start = min(max(column - len(label) // 2, 0), len(line) - len(label))
        if all(place == " " for place in line[max(start - 1, 0) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return "".join(line).rstrip()


def _legend(letters: dict[str, str]) -> str:
    lines = [""]
    for method, letter in letters.items():
        entry = f"{letter} {method}"
        if lines[-1] and len(lines[-1]) + 3 + len(entry) > LEGEND_WIDTH - GUTTER:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + entry
    return "\n".join(" " * GUTTER + line for line in lines)
