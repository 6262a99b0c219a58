"""The pictures of the study of ADVI on MNIST, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .results import Result
from .study import Picture

SHOWN = 12
ROW = "normal"  # whose answers are drawn
RIGHT, WRONG = "#1f5fa8", "#c0392b"

Results = Mapping[str, Result]


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def draw_uncertainty(results: Results, path: Path) -> None:
    """Deviation of the probability against the expected error, and the expected error against the real one."""
    details = results[ROW].record["details"]
    told = {k: np.array(v) for k, v in details["uncertainty"].items()}
    figure = _figure((9.5, 3.9))
    left, right = figure.subplots(1, 2)
    for group, colour, label in ((~told["wrong"], RIGHT, "right"), (told["wrong"], WRONG, "wrong")):
        left.plot(
            told["expected_error"][group],
            told["deviation"][group],
            ".",
            color=colour,
            markersize=4,
            alpha=0.5,
            label=label,
        )
    left.set_ylabel("deviation over draws of the class's probability", fontsize=9)
    left.legend(fontsize=8)
    parts = details["by_expected_error"]
    right.plot([0, 1], [0, 1], color="black", linewidth=1)
    right.plot(parts["expected"], parts["wrong"], "o-", color=RIGHT, markersize=4)
    for x, y, count in zip(parts["expected"], parts["wrong"], parts["count"], strict=True):
        right.annotate(f"{count:,}", (x, y), xytext=(4, -9), textcoords="offset points", fontsize=7)
    right.set_ylabel("share that is wrong", fontsize=9)
    right.set(xlim=(-0.02, 1), ylim=(-0.02, 1))
    for panel in (left, right):
        panel.set_xlabel("expected error", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


def draw_surely_wrong(results: Results, path: Path) -> None:
    """Wrong although all draws agree."""
    _images(results[ROW].record["details"]["surely_wrong"], path)


def draw_least_confident(results: Results, path: Path) -> None:
    """The images whose most probable class is the least probable."""
    _images(results[ROW].record["details"]["least_confident"], path)


def _images(shown: Sequence[Mapping[str, Any]], path: Path) -> None:
    figure = _figure((9.0, 3.6))
    grid = figure.subplots(2, SHOWN // 2)
    for panel in grid.flat:
        panel.set_axis_off()
    for panel, one in zip(grid.flat, shown, strict=False):
        panel.imshow(np.array(one["grey"]).reshape(28, 28), cmap="gray_r", vmin=0, vmax=255)
        panel.set_title(
            f"{one['label']}, guessed {one['guess']}\nat {one['confidence']:.2f}, error {one['expected_error']:.2f}",
            fontsize=7,
            color=RIGHT if one["label"] == one["guess"] else WRONG,
        )
    if not shown:
        figure.suptitle("there is none", fontsize=9)
    figure.savefig(path, metadata={"Software": None})


PICTURES = (
    Picture(
        name="uncertainty",
        caption=(
            "Left: the standard deviation over draws of the predicted class's probability against the expected error, of all "
            "wrong test images and 2,000 right ones. Right: the share of wrong images among those of similar expected error, "
            "with their number. First seed, fixed scales."
        ),
        needs=(ROW,),
        draw=draw_uncertainty,
    ),
    Picture(
        name="surely-wrong",
        caption="Wrong images with an expected error of zero, the most confident first: all draws agree on another label.",
        needs=(ROW,),
        draw=draw_surely_wrong,
    ),
    Picture(
        name="least-confident",
        caption="The images of lowest confidence: label, guess, its probability and the expected error.",
        needs=(ROW,),
        draw=draw_least_confident,
    ),
)
