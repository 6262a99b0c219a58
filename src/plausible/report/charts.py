"""Drawings as SVG. Their colours are the page's, so that they follow light and dark."""

from __future__ import annotations

import math
from html import escape

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 54, 12, 12, 40


class Plot:
    """Axes to draw into.

    Args:
        x: The smallest and the largest value across.
        y: The same upwards.
        x_label: What goes across.
        y_label: What goes up.
        size: Width and height.
        log_x: Whether x is drawn by its logarithm.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        *,
        size: tuple[int, int] = (360, 270),
        log_x: bool = False,
    ):
        self.x_range, self.y_range, self.size, self.log_x = _widened(x), _widened(y), size, log_x
        self.parts: list[str] = []
        self.labels = (x_label, y_label)

    def x(self, value: float) -> float:
        """Where a value is across the picture."""
        low, high = self.x_range
        if self.log_x:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return MARGIN_LEFT + (value - low) / (high - low) * (self.size[0] - MARGIN_LEFT - MARGIN_RIGHT)

    def y(self, value: float) -> float:
        """Where a value is down the picture."""
        low, high = self.y_range
        return self.size[1] - MARGIN_BOTTOM - (value - low) / (high - low) * (self.size[1] - MARGIN_TOP - MARGIN_BOTTOM)

    def add(self, markup: str) -> None:
        """Draw something given as SVG."""
        self.parts.append(markup)

    def bar(self, left: float, right: float, height: float, kind: str, base: float = 0.0) -> None:
        """A bar from `base` up to `height`."""
        x, y = self.x(left), self.y(max(height, base))
        tall = abs(self.y(base) - self.y(height))
        self.add(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{self.x(right) - x:.1f}" height="{tall:.1f}"/>')

    def line(self, points: list[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.add(f'<polyline class="{kind}" points="{path}"/>')

    def band(self, across: list[float], lower: list[float], upper: list[float], kind: str) -> None:
        """The area between two curves."""
        there = [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(across, upper, strict=True)]
        back = [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(across, lower, strict=True)][::-1]
        self.add(f'<polygon class="{kind}" points="{" ".join(there + back)}"/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 2.5) -> None:
        """A point."""
        self.add(f'<circle class="{kind}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:g}"/>')

    def svg(self, description: str) -> str:
        """The picture; the description is for those who cannot see it."""
        width, height = self.size
        return (
            f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}">'
            f"{self._axes()}{''.join(self.parts)}</svg>"
        )

    def _axes(self) -> str:
        width, height = self.size
        floor, right = height - MARGIN_BOTTOM, width - MARGIN_RIGHT
        found = []
        for value in ticks(*self.x_range, logarithmic=self.log_x):
            at = self.x(value)
            found.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{MARGIN_TOP}" y2="{floor}"/>')
            found.append(f'<text x="{at:.1f}" y="{floor + 15}" text-anchor="middle">{value:g}</text>')
        for value in ticks(*self.y_range):
            at = self.y(value)
            found.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            found.append(f'<text x="{MARGIN_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
        x_label, y_label = (escape(label) for label in self.labels)
        middle = (MARGIN_TOP + floor) / 2
        found.append(
            f'<text x="{(MARGIN_LEFT + right) / 2:.0f}" y="{height - 6}" text-anchor="middle">{x_label}</text>'
        )
        found.append(
            f'<text transform="rotate(-90)" x="{-middle:.0f}" y="11" text-anchor="middle">{y_label}</text>'
        )  # turned, so that across is up
        return "".join(found)


def ticks(low: float, high: float, *, logarithmic: bool = False) -> list[float]:
    """Round values between two ends, about five of them."""
    if logarithmic:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
        every = [step * 10.0**decade for decade in decades for step in steps]
        return [float(f"{value:.6g}") for value in every if low <= value <= high]
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{k * step:.6g}") for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _widened(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return (low, high) if high > low else (low - 0.5, high + 0.5)
