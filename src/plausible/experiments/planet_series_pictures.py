"""The pictures of the study of time series of planetary systems, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .planet_series_data import LONGEST, SHORTEST
from .results import Result
from .study import Picture

BLUE, RED, GREY, GREEN = "#1f5fa8", "#c0392b", "#555555", "#2e8b57"
NEIGHBOURS = 7  # systems that a curve's point is the median of: those of one separation differ in their angles alone
Results = Mapping[str, Result]


def draw_five(results: Results, path: Path) -> None:
    """Time against separation: what happened, the median with its 68 % band, and the analytic estimate."""
    ours, theirs = _details(results["multiswag-all"]), _details(results["petit"])
    figure, (panel,) = _figure(8.0, 4.8, 1)
    separation, time = ours["five_separation"], ours["five_time"]
    order = np.argsort(separation)
    low, middle, high = (np.minimum(_running(q[order]), LONGEST) for q in ours["five_quantiles"])
    panel.fill_between(separation[order], low, high, color=BLUE, alpha=0.22, linewidth=0, label="MultiSWAG, 68 %")
    panel.plot(separation[order], middle, color=BLUE, linewidth=2, label="MultiSWAG, median")
    analytic = np.minimum(theirs["five_quantiles"][1], LONGEST)
    panel.plot(
        separation[order], _running(analytic[order]), "--", color=RED, linewidth=1.8, label="Petit et al. (2020)"
    )
    lives = time >= LONGEST
    panel.plot(separation[~lives], time[~lives], ".", color="black", markersize=4, label="integrated")
    panel.plot(separation[lives], time[lives], "^", color=GREY, markersize=3, label="integrated, beyond 10⁹ orbits")
    panel.axhline(SHORTEST, color=GREY, linewidth=0.8, linestyle=":")
    panel.text(13, SHORTEST - 0.08, "the short integration ends", ha="right", va="top", fontsize=8, color=GREY)
    panel.set(xlabel="separation of neighbours (mutual Hill radii)", ylim=(0.5, 9.3))
    panel.set_ylabel("log₁₀ of orbits until planets meet")
    panel.legend(fontsize=8, loc="lower right")
    _save(figure, path)


def draw_random(results: Results, path: Path) -> None:
    """Predicted against true times of random systems that met."""
    figure, panels = _figure(9.0, 4.5, 2)
    for panel, row, name, colour in zip(
        panels,
        ("multiswag-all", "petit"),
        ("MultiSWAG, median and 68 %", "Petit et al. (2020)"),
        (BLUE, RED),
        strict=True,
    ):
        found = _details(results[row])
        met = found["random_time"] < LONGEST
        time = found["random_time"][met]
        low, middle, high = np.clip(found["random_quantiles"][:, met], SHORTEST, LONGEST)
        panel.plot([SHORTEST, LONGEST], [SHORTEST, LONGEST], color=GREY, linewidth=1)
        if row != "petit":
            panel.vlines(time, low, high, color=colour, alpha=0.12, linewidth=0.8)
        panel.plot(time, middle, ".", color=colour, markersize=3.5, alpha=0.7)
        panel.set_title(f"{name}: RMSE {np.sqrt(np.mean((middle - time) ** 2)):.2f}", fontsize=10)
        panel.set(xlabel="integrated log₁₀ T", xlim=(3.9, 9.1), ylim=(3.9, 9.1))
    panels[0].set_ylabel("predicted log₁₀ T, cut off at 9")
    _save(figure, path)


def draw_epistemic(results: Results, path: Path) -> None:
    """How far networks disagree against what they predict: past the longest time in the data they can only guess."""
    found = _details(results["multiswag-all"])
    figure, (panel,) = _figure(7.0, 4.3, 1)
    edges = np.arange(SHORTEST, 21.0)
    for name, predicted, unsure, colour in (
        ("random systems", found["random_quantiles"][1], found["random_epistemic"], BLUE),
        ("trios of five planets", found["trio_median"], found["trio_epistemic"], GREEN),
    ):
        panel.plot(predicted, unsure, ".", color=colour, markersize=3, alpha=0.25)
        inside = [(predicted >= low) & (predicted < low + 1) for low in edges]
        shown = [(low + 0.5, np.median(unsure[at])) for low, at in zip(edges, inside, strict=True) if at.sum() >= 8]
        panel.plot(*zip(*shown, strict=True), "o-", color=colour, markersize=4, label=f"{name}: median")
    panel.axvline(LONGEST, color=GREY, linewidth=0.8, linestyle=":")
    panel.text(LONGEST + 0.1, 0.035, "no data beyond", fontsize=8, color=GREY, va="bottom")
    panel.set(xlabel="predicted log₁₀ T (median)", yscale="log", xlim=(SHORTEST, 21), ylim=(0.03, 8))
    panel.set_ylabel("epistemic deviation of log₁₀ T")
    panel.legend(fontsize=8, loc="lower right")
    _save(figure, path)


PICTURES = (
    Picture(
        name="five",
        caption=(
            "Systems of five planets, the like of which the network was never trained on: MultiSWAG's median and central 68 % "
            "interval, medians of seven neighbouring systems, cut off at 9; below 4 the short integration itself says it."
        ),
        needs=("multiswag-all", "petit"),
        draw=draw_five,
    ),
    Picture(
        name="random",
        caption="Random systems of the test part that met within 10⁹ orbits; medians are cut off at 4 and 9.",
        needs=("multiswag-all", "petit"),
        draw=draw_random,
    ),
    Picture(
        name="epistemic",
        caption=(
            "The part of the deviation that is due to the weights, against the predicted time. It grows toward the end of the "
            "record and beyond it."
        ),
        needs=("multiswag-all",),
        draw=draw_epistemic,
    ),
)


def _details(result: Result) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in result.record["details"].items()}


def _running(values: np.ndarray) -> np.ndarray:
    padded = np.pad(values, NEIGHBOURS // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=-1)


def _figure(width: float, height: float, columns: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
    return figure, panels


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file
