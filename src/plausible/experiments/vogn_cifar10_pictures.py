"""The pictures of the study of natural-gradient methods on CIFAR-10, from its stored results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .results import Result
from .study import Estimate, Picture

NETWORKS = {
    "lenet5": "LeNet-5", "alexnet-plain": "AlexNet, no augmentation", "alexnet": "AlexNet", "resnet18": "ResNet-18"
}  # fmt: skip
COLOURS = {
    "adam": "#7a7a7a", "vogn": "#c0392b", "vogn-parts": "#e377c2", "ogn": "#e08a00", "ivon": "#1f5fa8", "kfac": "#8e6bbf",
    "noisy-kfac": "#2c8a4b", "swag": "#17a2b8", "bbb": "#7b4a1e", "mc-dropout": "#444444",
}  # fmt: skip
JUDGED = {"nll": "low", "ece": "low", "auroc": "high"}

Results = Mapping[str, Result]


def _finished(results: Results) -> dict[str, dict[str, Result]]:
    """Results by network and method, in the order of the tables; networks that have none are left out."""
    found = {
        network: {m: results[f"{network}-{m}"] for m in COLOURS if f"{network}-{m}" in results} for network in NETWORKS
    }
    return {network: rows for network, rows in found.items() if rows}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


def draw_curves(results: Results, path: Path) -> None:
    """Test accuracy along training: the mean over seeds."""
    found = _finished(results)
    figure = _figure(4.2 * len(found), 3.6)
    for panel, (network, rows) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for method, result in rows.items():
            curve = result.record["details"]["curve"]
            means = [sum(at) / len(at) for at in zip(*curve["accuracy"], strict=True)]
            panel.plot(curve["epoch"], means, ".-", color=COLOURS[method], linewidth=1.2, markersize=4, label=method)
        panel.set_title(NETWORKS[network], fontsize=10)
        panel.set_xlabel("epoch", fontsize=9)
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=8)
    figure.axes[0].set_ylabel("test accuracy %", fontsize=9)
    lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
    shown = [m for m in COLOURS if m in lines]
    figure.legend([lines[m] for m in shown], shown, fontsize=8, loc="outside right center")
    _save(figure, path)


def draw_entropies(results: Results, path: Path) -> None:
    """Histograms of the predictive entropy of CIFAR-10 and of SVHN, for the first seed."""
    found = _finished(results)
    widest = max(len(rows) for rows in found.values())
    figure = _figure(2.1 * widest, 1.9 * len(found))
    grid = figure.subplots(len(found), widest, squeeze=False, sharex=True)
    for panels, (network, rows) in zip(grid, found.items(), strict=True):
        for panel in panels[len(rows) :]:
            panel.set_visible(False)
        for panel, (method, result) in zip(panels, rows.items(), strict=False):
            told = result.record["details"]["entropies"]
            for key, colour, name in (("inside", "#1f5fa8", "CIFAR-10"), ("outside", "#e08a00", "SVHN")):
                panel.stairs(told[key], told["edges"], fill=True, alpha=0.55, color=colour, label=name)
            panel.set_title(f"{NETWORKS[network]}: {method}", fontsize=6)
            panel.tick_params(labelsize=6)
        panels[0].legend(fontsize=6)
    for column in grid.T:  # whose own lowest panel may be above one that is left out
        [panel for panel in column if panel.get_visible()][-1].tick_params(labelbottom=True)
    _save(figure, path)


def scorecard(results: Results) -> dict[str, int]:
    """In how many cells (a network and one of NLL, ECE and AUROC) each method is best, or within a standard error of it."""
    wins = dict.fromkeys(COLOURS, 0)
    for rows in _finished(results).values():
        for column, better in JUDGED.items():
            told = {method: result.scores[column] for method, result in rows.items()}
            sign = 1 if better == "high" else -1
            best = max(told.values(), key=lambda e: sign * e.mean)
            for method, one in told.items():
                if sign * (best.mean - one.mean) <= _spread(best, one):
                    wins[method] += 1
    return wins


def _spread(first: Estimate, second: Estimate) -> float:
    """The standard error of a difference; none where there is one seed."""
    spread = math.hypot(first.error, second.error)
    return spread if math.isfinite(spread) else 0.0


def draw_scorecard(results: Results, path: Path) -> None:
    """The scorecard as bars."""
    found, wins = _finished(results), scorecard(results)
    ran = [m for m in COLOURS if any(m in rows for rows in found.values())]
    figure = _figure(6.0, 0.35 * len(ran) + 1.0)
    panel = figure.subplots()
    panel.barh(ran[::-1], [wins[m] for m in ran[::-1]], color=[COLOURS[m] for m in ran[::-1]])
    for place, method in enumerate(ran[::-1]):
        shown = sum(method in rows for rows in found.values()) * len(JUDGED)
        panel.text(wins[method] + 0.05, place, f"{wins[method]} of {shown}", va="center", fontsize=8)
    panel.set_xlim(0, len(found) * len(JUDGED) + 1)
    panel.set_xlabel("cells of NLL, ECE and AUROC in which it is best or tied", fontsize=9)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


PICTURES = (
    Picture(
        name="curves", caption="Test accuracy along training, means over seeds", needs=["lenet5-adam", "lenet5-vogn"],
        draw=draw_curves,
    ),
    Picture(
        name="entropies", caption="Entropy of predictions on CIFAR-10 and on SVHN, in nats",
        needs=["lenet5-adam", "lenet5-vogn"], draw=draw_entropies,
    ),
    Picture(
        name="scorecard", caption="Cells of NLL, ECE and AUROC in which each method is best, or within a standard error of it",
        needs=["lenet5-adam", "lenet5-vogn"], draw=draw_scorecard,
    ),
)  # fmt: skip
