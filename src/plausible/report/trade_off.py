"""NLL against seconds as a drawing for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .charts import MARGIN_BOTTOM, MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, Plot
from .tables import Rows

SIZE = (640, 300)
DOT = 6.0
LETTER = 6.2  # width of a letter of a name, about
LINE = 13.0  # height of a name
GAP = 9.0  # from a dot to its name

Box = tuple[float, float, float, float]  # left, top, right, bottom


def trade_off(rows: Rows) -> str:
    """One dot a method with its standard error; a name beside it where there is room."""
    points = {
        method: (
            max(row["seconds"].mean, 1e-3),
            row["nll"].mean,
            0.0 if math.isnan(row["nll"].error) else row["nll"].error,
        )
        for method, row in rows.items()
        if math.isfinite(row["nll"].mean)
    }
    low = min((loss - error for _, loss, error in points.values()), default=0.0)
    high = max((loss + error for _, loss, error in points.values()), default=1.0)
    pad = 0.12 * (high - low) or 0.1
    seconds = [second for second, _, _ in points.values()] or [1.0]
    across = (min(seconds) / 1.5, max(seconds) * 1.5)
    plot = Plot(across, (low - pad, high + pad), "seconds to fit", "NLL", size=SIZE, log_x=True)
    places = {method: (plot.x(second), plot.y(loss)) for method, (second, loss, _) in points.items()}
    whiskers = [
        (plot.x(second) - 1, plot.y(loss + error), plot.x(second) + 1, plot.y(loss - error))
        for second, loss, error in points.values()
    ]
    names = place_names(places, whiskers)
    for method, (second, loss, error) in points.items():
        plot.line([(second, loss - error), (second, loss + error)], "whisker")
        (x, y), (at, level) = places[method], names[method]
        spread = f" ± {error:.3f}" if error else ""
        numbers = escape(f"{method}: NLL {loss:.3f}{spread}, {second:.1f} s")
        plot.add(
            f'<circle class="point" tabindex="0" role="img" aria-label="{numbers}" data-tip="{numbers}" '
            f'cx="{x:.1f}" cy="{y:.1f}" r="{DOT:g}"/><text class="name" x="{at:.1f}" y="{level:.1f}">{escape(method)}</text>'
        )
    return plot.svg("NLL against seconds to fit").replace('role="img"', 'role="group"', 1)


def place_names(dots: dict[str, tuple[float, float]], others: Sequence[Box] = ()) -> dict[str, tuple[float, float]]:
    """Where each name begins: right of its dot, else left, above or below, on no dot, no other name and nothing else."""
    taken: list[Box] = [*others, *((x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots.values())]
    found = {}
    for name, (x, y) in dots.items():
        width = LETTER * len(name)
        choices = [(x + GAP, y + 4), (x - GAP - width, y + 4)]
        for lines in (1, 2, 3):
            choices += [(x - width / 2, y - LINE * lines + 2), (x - width / 2, y + LINE * lines + 7)]
        boxes = [(at, level - LINE + 3, at + width, level + 3) for at, level in choices]
        free = [k for k, box in enumerate(boxes) if _inside(box) and not any(_meet(box, other) for other in taken)]
        best = free[0] if free else 0
        found[name] = choices[best]
        taken.append(boxes[best])
    return found


def _inside(box: Box) -> bool:
    left, top, right, bottom = box
    return (
        left >= MARGIN_LEFT
        and right <= SIZE[0] - MARGIN_RIGHT
        and top >= MARGIN_TOP
        and bottom <= SIZE[1] - MARGIN_BOTTOM
    )


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
