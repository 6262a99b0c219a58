"""The pictures of the study of priors under ADVI, from its stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .advi_prior_answers import BINS, SMALL, WIDEST
from .advi_prior_points import SETS, boundary, picture_bounds
from .results import Result
from .study import Picture, estimate

FAMILIES = ("normal", "laplace", "cauchy")
HYPERPRIORS = ("fixed", "half-normal", "half-cauchy", "inverse-gamma")
CELLS = (*(f"{family}-{hyperprior}" for family in FAMILIES for hyperprior in HYPERPRIORS), "flat")
MAPPED = {"moons": "normal-inverse-gamma", "circles": "cauchy-inverse-gamma"}  # the published best
COLOURS = {"normal": "#1f5fa8", "laplace": "#e08a00", "cauchy": "#2c8a4b", "flat": "#7a7a7a"}
STYLES = {"fixed": "-", "half-normal": "--", "half-cauchy": "-.", "inverse-gamma": ":"}

Results = Mapping[str, Result]


def _picture(path: Path, size: tuple[float, float], panels: tuple[int, int], draw: Callable[[Any, Any], None]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(*panels, squeeze=False)
    for panel in grid.flat:
        panel.tick_params(labelsize=8)
    draw(figure, grid)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


def _details(results: Results, cell: str) -> Any:
    return results[cell].record["details"]


def _look(cell: str) -> dict[str, Any]:
    family, _, hyperprior = cell.partition("-")
    return {"color": COLOURS[family], "linestyle": STYLES.get(hyperprior, "-")}


def draw_noise(results: Results, path: Path) -> None:
    """Accuracy below the best possible, against the noise, for every cell."""

    def draw(figure: Any, grid: Any) -> None:
        for panel, name in zip(grid[0], SETS, strict=True):
            for cell in CELLS:
                told = _details(results, cell)["sweep"][name]
                panel.plot(told["noise"], told["gap"], marker=".", linewidth=1.2, label=cell, **_look(cell))
            told = _details(results, CELLS[0])["sweep"][name]
            places = [f"{n:g}\n({best:.1f} %)" for n, best in zip(told["noise"], told["optimal"], strict=True)]
            panel.set_xticks(told["noise"], places)
            panel.axhline(0, color="black", linewidth=1)
            panel.grid(alpha=0.3)
            panel.set_title(name, fontsize=10)
            panel.set_xlabel("noise (Bayes-optimal accuracy)", fontsize=9)
        grid[0, 0].set_ylabel("points of accuracy below the optimum", fontsize=9)
        grid[0, 1].legend(fontsize=6, ncols=2)

    _picture(path, (10.0, 4.2), (1, 2), draw)


def draw_maps(results: Results, path: Path) -> None:
    """Class probability, its deviation over the posterior, and that deviation against the distance from the boundary."""

    def draw(figure: Any, grid: Any) -> None:
        for row, (name, cell) in zip(grid, MAPPED.items(), strict=True):
            told = _details(results, cell)["map"][name]
            shape, bounds = (told["places"], told["places"]), picture_bounds(name, told["noise"])
            edge = boundary(name, told["noise"]).numpy()
            for panel, (key, title, colours) in zip(
                row, (("mean", "probability", "RdBu"), ("deviation", "standard deviation", "viridis")), strict=False
            ):
                top = {"vmin": 0, "vmax": 1} if key == "mean" else {"vmin": 0}
                values = np.array(told[key]).reshape(shape)
                drawn = panel.imshow(values, origin="lower", extent=bounds, cmap=colours, aspect="auto", **top)
                panel.plot(edge[:, 0], edge[:, 1], ".", color="black", markersize=1)
                panel.set_title(f"{name}, {cell}: {title}", fontsize=8)
                figure.colorbar(drawn, ax=panel)
            _distances(row[2], results, name)

    _picture(path, (12.0, 7.0), (2, 3), draw)


def _distances(panel: Any, results: Results, name: str) -> None:
    for cell in (*MAPPED.values(), "flat"):
        told = _details(results, cell)["boundary"][name]
        rho = estimate(told["correlation"]).mean
        panel.plot(
            told["distance"], told["deviation"], marker="o", markersize=3, label=f"{cell}: ρ = {rho:.2f}", **_look(cell)
        )
    panel.set_xlabel("distance from the Bayes-optimal boundary", fontsize=8)
    panel.set_ylabel("standard deviation of the probability", fontsize=8)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)


def draw_gains(results: Results, path: Path) -> None:
    """NLL of fixed scales minus that of learnt ones, with intervals."""
    learnt = [cell for cell in CELLS if cell != "flat" and not cell.endswith("-fixed")]

    def draw(figure: Any, grid: Any) -> None:
        for panel, name in zip(grid[0], SETS, strict=True):
            for place, cell in enumerate(reversed(learnt)):
                told = _details(results, cell)["gain"][name]
                bars = [[told["mean"] - told["low"]], [told["high"] - told["mean"]]]
                panel.errorbar(
                    [told["mean"]], [place], xerr=bars, fmt="o", capsize=3, markersize=4, color=_look(cell)["color"]
                )
            panel.axvline(0, color="black", linewidth=1)
            panel.set_yticks(range(len(learnt)), list(reversed(learnt)))
            panel.set_xlabel("NLL of the fixed scale minus that of the learnt one", fontsize=9)
            panel.set_title(name, fontsize=10)
            panel.grid(alpha=0.3)

    _picture(path, (10.0, 3.6), (1, 2), draw)


def draw_scales(results: Results, path: Path) -> None:
    """Learnt scales of the three layers, over seeds, beside the ones that a grid search takes."""

    def draw(figure: Any, grid: Any) -> None:
        for panel, name in zip(grid[0], SETS, strict=True):
            lines = [_scale_line(results, family, hyper, name) for family in FAMILIES for hyper in HYPERPRIORS]
            for place, (family, _, scales) in enumerate(reversed(lines)):
                for layer, (marker, values) in enumerate(zip("osD", scales, strict=False)):
                    panel.plot(
                        values, [place + 0.22 * (1 - layer)] * len(values), marker, markersize=3, alpha=0.6,
                        color=COLOURS[family],
                    )  # fmt: skip
            panel.set_yticks(range(len(lines)), [label for _, label, _ in reversed(lines)], fontsize=7)
            panel.set_xscale("log")
            panel.set_xlabel("scale of the prior", fontsize=9)
            panel.set_title(name, fontsize=10)
            panel.grid(alpha=0.3)

    _picture(path, (11.5, 4.6), (1, 2), draw)


def _scale_line(results: Results, family: str, hyperprior: str, name: str) -> tuple[str, str, list[list[float]]]:
    """The family, a label with the NLL, and the scales of each layer."""
    details = _details(results, f"{family}-{hyperprior}")
    if hyperprior == "fixed":
        told = details["tuned"][name]
        return family, f"{family}, grid: NLL {estimate(told['nll']).mean:.4f}", [told["scale"]]
    nll = results[f"{family}-{hyperprior}"].scores[f"{name} nll"].mean
    return family, f"{family}, {hyperprior}: NLL {nll:.4f}", list(details["scales"][name].values())


def draw_weights(results: Results, path: Path) -> None:
    """The last layer's weights under each family with its scale fixed."""

    def draw(figure: Any, grid: Any) -> None:
        middles = np.linspace(-WIDEST, WIDEST, BINS + 1)[:-1] + WIDEST / BINS
        for panel, name in zip(grid[0], SETS, strict=True):
            for family in FAMILIES:
                told = _details(results, f"{family}-fixed")["weights"][name]
                label = f"{family}: {100 * told['small']:.0f} % small, kurtosis {told['kurtosis']:.1f}"
                panel.plot(middles, told["density"], color=COLOURS[family], linewidth=1.2, label=label)
            panel.set_title(name, fontsize=10)
            panel.set_xlabel("weight of the last layer", fontsize=9)
            panel.set_yscale("log")
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)
        grid[0, 0].set_ylabel("posterior density, all weights and seeds", fontsize=9)

    _picture(path, (10.0, 3.8), (1, 2), draw)


PICTURES = (
    Picture(
        name="noise",
        caption="Accuracy on 20,000 fresh points below that of the Bayes-optimal rule, mean over seeds, for every noise.",
        needs=CELLS,
        draw=draw_noise,
    ),
    Picture(
        name="maps",
        caption=(
            "Posterior class probability and its standard deviation over draws, first seed, with the Bayes-optimal boundary in "
            "black; right, the deviation at 2,000 fresh points by their distance from that boundary, mean over seeds, and the "
            "rank correlation ρ of the two: below zero, networks are less unsure farther away."
        ),
        needs=(*MAPPED.values(), "flat"),
        draw=draw_maps,
    ),
    Picture(
        name="gains",
        caption=(
            "Learnt scales against the fixed scale 1, paired by seed, at the two largest noises: mean difference of NLL on fresh "
            "points and its 95 % interval; right of zero the learnt scale is better."
        ),
        needs=tuple(cell for cell in CELLS if cell != "flat"),
        draw=draw_gains,
    ),
    Picture(
        name="scales",
        caption=(
            "Scales of the first (circle), second (square) and last layer (diamond) that the posterior has, each mark a seed, "
            "and the one scale of 0.1, 0.3, 1, 3 and 10 with the least NLL on 300 further points; all at the noise of the table, "
            "with the NLL on fresh points."
        ),
        needs=tuple(cell for cell in CELLS if cell != "flat"),
        draw=draw_scales,
    ),
    Picture(
        name="weights",
        caption=(
            "Posterior of the last layer's weights under priors of scale 1, at the noise of the table; small are weights whose "
            f"mean is below {SMALL:g} in size, and the kurtosis is of the means (a normal law has 3)."
        ),
        needs=tuple(f"{family}-fixed" for family in FAMILIES),
        draw=draw_weights,
    ),
)
