"""The pictures of the study of planetary systems, from its stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .planet_recorded_time import LONGEST, SHORTEST
from .results import Result
from .study import Picture

COLOURS = {
    "multiswag": "#1f5fa8",
    "deep-ensemble": "#e08a00",
    "map": "#7a7a7a",
    "gradient-boosted-trees": "#2c8a4b",
    "chaos": "#c0392b",
}
SETS = {"resonant systems, test": "", "KOI-1576": "-KOI-1576"}
SHOWN = 300  # systems with error bars; more would hide each other

Results = Mapping[str, Result]


def _picture(path: Path, size: tuple[float, float], draw: Callable[[Any], None], columns: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, columns)
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    draw(panels)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


def draw_predictions(results: Results, path: Path) -> None:
    """Median and 68 % interval against the true time, a panel a set."""

    def draw(panels: Any) -> None:
        for panel, (title, ending) in zip(panels, SETS.items(), strict=True):
            found = {k: np.array(v) for k, v in results[f"multiswag{ending}"].record["details"]["predictions"].items()}
            _one_set(panel, found)
            panel.set_title(title, fontsize=10)
            panel.set_xlabel("true log10 of the time in orbits", fontsize=9)
        panels[0].set_ylabel("predicted median and 68 % interval", fontsize=9)
        panels[0].legend(fontsize=8, loc="upper left")

    _picture(path, (9.5, 4.6), draw, 2)


def _one_set(panel: Any, found: Mapping[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    outlived = found["time"] >= LONGEST
    # Those that outlived the record are all at 9: spread to the right of it, so that they can be told apart.
    place = np.where(outlived, LONGEST + rng.uniform(0.1, 0.6, len(outlived)), found["time"])
    chosen = rng.permutation(len(place))[:SHOWN]
    for group, colour, label in (
        (chosen[~outlived[chosen]], COLOURS["multiswag"], "met"),
        (chosen[outlived[chosen]], COLOURS["chaos"], "outlived 10⁹ orbits"),
    ):
        middle = found["median"][group]
        bars = np.stack([middle - found["low"][group], found["high"][group] - middle]).clip(0)
        panel.errorbar(
            place[group],
            middle,
            yerr=bars,
            fmt="o",
            markersize=2.5,
            linewidth=0.6,
            alpha=0.6,
            color=colour,
            label=label,
        )
    panel.plot([SHORTEST, LONGEST], [SHORTEST, LONGEST], color="black", linewidth=1)
    panel.axvspan(LONGEST, LONGEST + 0.7, color="0.93", zorder=0)
    panel.set(xlim=(SHORTEST - 0.1, LONGEST + 0.7), ylim=(SHORTEST - 0.1, LONGEST + 0.1))


def draw_calibration(results: Results, path: Path) -> None:
    """Nominal against observed coverage of central intervals, the mean over seeds."""

    def draw(panels: Any) -> None:
        for panel, (title, ending) in zip(panels, SETS.items(), strict=True):
            panel.plot([0, 1], [0, 1], color="black", linewidth=1)
            for method in ("map", "deep-ensemble", "gradient-boosted-trees", "multiswag"):
                told = results[f"{method}{ending}"].record["details"]["coverage"]
                observed = np.array(told["observed"])
                panel.plot(told["level"], observed.mean(0), ".-", color=COLOURS[method], linewidth=1.2, label=method)
                panel.fill_between(
                    told["level"], observed.min(0), observed.max(0), color=COLOURS[method], alpha=0.15, linewidth=0
                )
            panel.set_title(title, fontsize=10)
            panel.set_xlabel("probability of the interval", fontsize=9)
            panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        panels[0].set_ylabel("share of times inside", fontsize=9)
        panels[0].legend(fontsize=8, loc="upper left")

    _picture(path, (8.6, 4.4), draw, 2)


def draw_uncertainty(results: Results, path: Path) -> None:
    """Disagreement of weights away from the training part, and the expected noise beside what chaos does."""

    def draw(panels: Any) -> None:
        away, beside = panels
        for method in ("deep-ensemble", "multiswag"):
            moved = results[method].record["details"]["shift"]
            low, middle, high = np.array(moved["disagreement"]).T
            away.plot(moved["shift"], middle, "o-", markersize=3.5, color=COLOURS[method], label=f"{method}: median")
            away.fill_between(moved["shift"], low, high, color=COLOURS[method], alpha=0.15, linewidth=0)
        koi = results["multiswag-KOI-1576"].record["details"]["predictions"]["disagreement"]
        away.axhline(
            float(np.median(koi)), color=COLOURS["multiswag"], linestyle="--", linewidth=1, label="multiswag: KOI-1576"
        )
        away.set_xlabel("every input moved by so many training deviations", fontsize=9)
        away.set_ylabel("disagreement of weights in dex", fontsize=9)
        away.set_yscale("log")
        away.legend(fontsize=8)
        spread = results["multiswag"].record["details"]["spread"]
        for name, label, style in (
            ("aleatoric", "aleatoric part", "o-"),
            ("chaos", "chaos: system and shadow", "s-"),
            ("epistemic", "epistemic part", "^:"),
        ):
            colour = COLOURS["chaos" if name == "chaos" else "multiswag"]
            beside.plot(spread["expected"], spread[name], style, markersize=4, color=colour, label=label)
        beside.set_xlabel("expected log10 of the recorded time", fontsize=9)
        beside.set_ylabel("spread of the recorded time in dex", fontsize=9)
        beside.set_ylim(bottom=0)
        beside.legend(fontsize=8)

    _picture(path, (9.5, 3.9), draw, 2)


def _rows(*methods: str) -> tuple[str, ...]:
    return tuple(f"{method}{ending}" for method in methods for ending in SETS.values())


PICTURES = (
    Picture(
        name="predictions",
        caption=(
            "MultiSWAG's median and central 68 % interval against the true time, of 300 systems of the first seed; intervals "
            "are cut at 9, where the record ends, and systems that outlived it are spread over the grey strip."
        ),
        needs=_rows("multiswag"),
        draw=draw_predictions,
    ),
    Picture(
        name="calibration",
        caption="Coverage of central intervals, mean and range over seeds; on the line, a forecast is calibrated.",
        needs=_rows("map", "deep-ensemble", "gradient-boosted-trees", "multiswag"),
        draw=draw_calibration,
    ),
    Picture(
        name="uncertainty",
        caption=(
            "Left: the spread over weights of the predicted law's centre, as the inputs of test systems are moved away from the "
            "training part, each input up or down at random; median and central 68 % of systems. Right: the parts of "
            "MultiSWAG's uncertainty beside the spread that chaos makes between a system and its shadow, for eighths of the "
            "test systems by expected time; what the aleatoric part has above chaos, the summaries do not tell."
        ),
        needs=("multiswag", "deep-ensemble", "multiswag-KOI-1576"),
        draw=draw_uncertainty,
    ),
)
