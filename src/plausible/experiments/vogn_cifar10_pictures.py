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
    "noisy-kfac": "#2c8a4b", "swag": "#17a2b8", "bbb": "#7b4a1e", "mc-dropout": "#000000",
}  # fmt: skip
NEAR = 14.0  # points of accuracy below the best that are drawn larger
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
    """Test accuracy along training, the mean over seeds; on the right, the best of it larger."""
    found = _finished(results)
    figure = _figure(9.0, 2.7 * len(found))
    grid = figure.subplots(len(found), 2, squeeze=False)
    for (whole, near), (network, rows) in zip(grid, found.items(), strict=True):
        curves = {method: curve(result) for method, result in rows.items()}
        for panel in (whole, near):
            for method, (epochs, means) in curves.items():
                ends = "D" if len(epochs) == 1 else "."
                size = 5 if len(epochs) == 1 else 4
                panel.plot(
                    epochs, means, ends + "-", color=COLOURS[method], linewidth=1.2, markersize=size, label=method
                )
            panel.grid(alpha=0.3)
            panel.tick_params(labelsize=8)
        usual = sorted(epochs[-1] for epochs, _ in curves.values())[len(curves) // 2]
        for panel in (whole, near):
            panel.set_xlim(0, 1.03 * usual)  # one method may have had several times as many epochs
        best = max(max(means) for _, means in curves.values())
        near.set_ylim(best - NEAR, best + 0.5)
        whole.set_title(NETWORKS[network], fontsize=10)
        near.set_title(f"the best {NEAR:g} points of it", fontsize=10)
        whole.set_ylabel("test accuracy %", fontsize=9)
    for panel in grid[-1]:
        panel.set_xlabel("epoch", fontsize=9)
    lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
    shown = [m for m in COLOURS if m in lines]
    figure.legend([lines[m] for m in shown], shown, fontsize=9, loc="outside right center")
    _save(figure, path)


def curve(result: Result) -> tuple[list[float], list[float]]:
    """Epochs at which a row was looked at, and its accuracy there, averaged over seeds."""
    told = result.record["details"]["curve"]
    return told["epoch"], [sum(at) / len(at) for at in zip(*told["accuracy"], strict=True)]


def draw_entropies(results: Results, path: Path) -> None:
    """Histograms of the predictive entropy of CIFAR-10 and of SVHN, for the first seed: a row a method, a column a network."""
    found = _finished(results)
    methods = [m for m in COLOURS if any(m in rows for rows in found.values())]
    figure = _figure(2.4 * len(found) + 0.8, 1.15 * len(methods) + 0.8)
    grid = figure.subplots(len(methods), len(found), squeeze=False, sharex=True)
    for panels, (network, rows) in zip(grid.T, found.items(), strict=True):
        panels[0].set_title(NETWORKS[network], fontsize=10)
        for panel, method in zip(panels, methods, strict=True):
            panel.tick_params(labelsize=8)
            panel.set_yticks([])
            if method not in rows:
                panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", va="center", fontsize=9)
                continue
            told = rows[method].record["details"]["entropies"]
            for key, colour, name in (("inside", "#1f5fa8", "CIFAR-10"), ("outside", "#e08a00", "SVHN")):
                panel.stairs(told[key], told["edges"], fill=True, alpha=0.55, color=colour, label=name)
    for panel, method in zip(grid[:, 0], methods, strict=True):
        panel.set_ylabel(method, fontsize=9)
    drawn = next(panel for panel in grid.flat if panel.patches)
    figure.legend(*drawn.get_legend_handles_labels(), fontsize=9, loc="outside upper right", ncols=2)
    figure.supxlabel("entropy of the prediction, in nats", fontsize=9)
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
        name="curves",
        caption="Test accuracy along training, means over seeds; SWAG is judged at its end alone (diamonds); on LeNet-5 "
        "Bayes by backprop went on until epoch 800",
        needs=["lenet5-adam", "lenet5-vogn"], draw=draw_curves,
    ),
    Picture(
        name="entropies", caption="Entropy of predictions on CIFAR-10 and on SVHN, first seed; heights are scaled panel by panel",
        needs=["lenet5-adam", "lenet5-vogn"], draw=draw_entropies,
    ),
    Picture(
        name="scorecard", caption="Cells of NLL, ECE and AUROC in which each method is best, or within a standard error of it",
        needs=["lenet5-adam", "lenet5-vogn"], draw=draw_scorecard,
    ),
)  # fmt: skip
