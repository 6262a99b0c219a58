"""What stands under a table: its marks, and what would mislead a reader who knows only the numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .plane import is_plane
from .scoring import LEVEL
from .tables import MARK

if TYPE_CHECKING:
    from .comparison import Comparison

BELOW_CHANCE = "OOD AUROC below 0.5: surer of the strange inputs than of the test examples"
FAR_AWAY = (
    ", because a trained network draws one border and is sure of everything far from it, data or none; only a method "
    "whose draws disagree there can notice"
)


def marks(comparison: Comparison) -> tuple[str, ...]:
    """What the marks in a table of the terminal stand for."""
    lines = []
    if len(comparison.runs) > 1:
        unit = f"one test example is {1 / len(comparison.data.x_test):.2%} of accuracy"
        lines.append(f"{MARK} best of its column; {unit if comparison.data.classes else 'in the units of the data'}")
    if len(comparison.seeds) > 1:
        lines.append("± one standard error over seeds")
    return tuple(lines)


def cautions(comparison: Comparison) -> tuple[str, ...]:
    """How to read the numbers of these data; nothing of a single method."""
    lines = []
    if comparison.outliers is not None:
        lines.append(f"OOD AUROC: {comparison.outliers_are}, by the entropy of the prediction")
        if any(row["ood"].mean < 0.5 for row in comparison.rows.values()):
            lines.append(BELOW_CHANCE + FAR_AWAY * is_plane(comparison.data))
    if comparison.data.task == "regression":
        count = len(comparison.data.x_test)
        chance = math.sqrt(LEVEL * (1 - LEVEL) / count)
        lines.append(
            f"in 90 % interval: with {count} test examples chance alone moves it by about {chance:.1%}; a noise scale "
            "fitted to the training part comes out too small where examples are few, and intervals too narrow"
        )
    return tuple(lines)
