"""What a network is sure of in the plane: one point of its weights beside natural-gradient posteriors, with data and with few."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..core.method import Method
from .study import Column, Outcome, Picture, Row, Study

NOISE, FRESH = 0.2, 10_000
EXAMPLES, FEW = 400, 100
BOUNDS, PLACES = (-3.0, 4.0, -2.5, 3.0), 71  # left, right, bottom, top; and places along an axis
BOUNDARIES = 12  # draws whose boundaries are shown
POINTS = "#1f5fa8", "#e08a00"  # colours of the two classes


@dataclass(frozen=True, kw_only=True)
class PlaneRow(Row):
    """One method on one small data set.

    Attributes:
        method: "adam", "vogn", "ivon", "ogn" or "advi".
        examples: Points that are learned.
        hidden: Widths of the hidden layers.
        prior_scale: Deviation of the weights under the prior.
        samples: Draws of a prediction.
        seeds: Trainings, with points of their own.
    """

    method: str
    examples: int = EXAMPLES
    hidden: tuple[int, ...] = (16, 16)
    prior_scale: float = 1.0
    samples: int = 200
    seeds: int = 5


def method_for(row: PlaneRow) -> Method:
    """With the library's defaults."""
    methods: dict[str, Method] = {
        "adam": pl.MAP(learning_rate=1e-2),
        "vogn": pl.VOGN(),
        "ogn": pl.OGN(),
        "ivon": pl.IVON(),
        "advi": pl.ADVI(),
    }
    return methods[row.method]


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two half circles."""
    from sklearn.datasets import make_moons  # slow to import

    x, y = make_moons(n_samples=count, noise=NOISE, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)


def grid() -> Tensor:
    """Places of the picture, row by row from below."""
    across, up = torch.linspace(*BOUNDS[:2], PLACES), torch.linspace(*BOUNDS[2:], PLACES)
    return torch.cartesian_prod(up, across).flip(1)


def run(row: PlaneRow, root: Path | None) -> Outcome:
    """One training per seed, judged on fresh points; the first is drawn."""
    x_fresh, y_fresh = points(FRESH, seed=1_000_003)
    scores: dict[str, list[float]] = {"nll": [], "accuracy": [], "away": []}
    details: dict[str, Any] = {}
    for seed in range(row.seeds):
        network = pl.networks.MLP(2, hidden=row.hidden, outputs=2, activation="tanh")
        prior = pl.priors.Normal(scale=row.prior_scale)
        posterior = pl.fit(
            pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=prior), points(row.examples, seed), method_for(row),
            epochs=row.epochs, batch_size=row.examples, init="reset", seed=seed, device="cpu",
        )  # fmt: skip
        fresh = posterior.predict(x_fresh, num_samples=row.samples)
        everywhere = posterior.predict(grid(), num_samples=row.samples)
        scores["nll"].append(float(pl.metrics.nll(fresh.probs, y_fresh)))
        scores["accuracy"].append(100 * float(pl.metrics.accuracy(fresh.probs, y_fresh)))
        scores["away"].append(float(everywhere.total[_edge()].mean()))
        if seed == 0:
            details = _drawn(posterior, everywhere)
    return Outcome(
        scores=scores, seeds=list(range(row.seeds)), device=f"CPU with {os.cpu_count()} cores", details=details
    )  # fmt: skip


def _edge() -> Tensor:
    """Which places lie on the border of the picture, away from the data."""
    places = torch.arange(PLACES**2)
    up, across = places // PLACES, places % PLACES
    return (up == 0) | (up == PLACES - 1) | (across == 0) | (across == PLACES - 1)


def _drawn(posterior: Any, everywhere: Any) -> dict[str, Any]:
    """What the picture shows: the mean weights' probabilities, those of single draws, and the entropy."""
    center = pl.posteriors.Delta(posterior.model, posterior.mean)
    rounded = lambda t: [round(v, 3) for v in t.flatten().tolist()]  # noqa: E731
    single = everywhere.outputs.softmax(-1)[:BOUNDARIES, :, 1]
    return {
        "mean": rounded(center.predict(grid()).probs[:, 1]),
        "entropy": rounded(everywhere.total),
        "draws": [rounded(draw) for draw in single] if len(single) > 1 else [],
    }


def toy(row: PlaneRow) -> PlaneRow:
    """A short training of a narrow network."""
    return replace(row, full=False, epochs=20, hidden=(4,), samples=8, seeds=1)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """The boundary of the mean weights in red, those of draws in light red, the entropy behind; a column a data set."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8.2, 2.6 * len(METHODS)), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(METHODS), 2, squeeze=False, sharex=True, sharey=True)
    across, up = np.linspace(*BOUNDS[:2], PLACES), np.linspace(*BOUNDS[2:], PLACES)
    shape = (PLACES, PLACES)
    for panel, result in zip(panels.T.flat, results.values(), strict=True):
        told, row = result.record["details"], result.row
        x, y = points(row.examples, 0)
        behind = panel.imshow(
            np.reshape(told["entropy"], shape), origin="lower", extent=BOUNDS, cmap="Greys", vmin=0, vmax=0.6931, aspect="auto",
            interpolation="bilinear",
        )  # fmt: skip
        for one in told["draws"]:
            panel.contour(across, up, np.reshape(one, shape), levels=[0.5], colors="#f4a3a0", linewidths=1.0)
        for label, colour in enumerate(POINTS):
            panel.plot(x[y == label, 0], x[y == label, 1], "o", color=colour, markersize=2)
        panel.contour(across, up, np.reshape(told["mean"], shape), levels=[0.5], colors="#c0392b", linewidths=2.4)
        panel.set_title(f"{row.method}, {row.examples} points", fontsize=10)
        panel.tick_params(labelsize=8)
    lines = [Line2D([], [], color="#c0392b", linewidth=2.4), Line2D([], [], color="#f4a3a0", linewidth=1.0)]
    lines += [Line2D([], [], marker="o", linestyle="", color=colour, markersize=3) for colour in POINTS]
    names = ["boundary of the mean weights", "of draws", "one class", "the other"]
    figure.legend(lines, names, fontsize=9, loc="outside upper center", ncols=4)
    bar = figure.colorbar(behind, ax=panels, shrink=0.3)
    bar.set_label("entropy of the prediction (nats)", fontsize=8)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


METHODS = ("adam", "ogn", "vogn", "ivon", "advi")
ROWS = [
    PlaneRow(name=method if count == EXAMPLES else f"{method}-few", method=method, examples=count, epochs=3000)
    for count in (EXAMPLES, FEW)
    for method in METHODS
]
STUDY = Study(
    name="vogn-2d",
    title="Boundaries in the plane",
    paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019), Practical deep learning with Bayesian principles",
    about=(
        f"A tanh network 2-16-16-2 with N(0, 1) weights learns {EXAMPLES} points of two moons (noise {NOISE:g}), {FEW} in "
        f"the rows `few`; judged on {FRESH:,} fresh points."
    ),
    columns={
        "nll": Column(heading="NLL", form=".4f", better="low", meaning="negative log likelihood of fresh points"),
        "accuracy": Column(heading="accuracy %", form=".2f", better="high", meaning="share of right labels"),
        "away": Column(
            heading="entropy away",
            form=".3f",
            better="neither",
            meaning="mean entropy of predictions on the border of the picture, away from the data, in nats",
        ),
    },  # fmt: skip
    rows=ROWS,
    published={},
    differences=(
        "the paper's figure has data of its own, which are not published; these are two moons",
        "of 100 points the boundary of independent normals is a straight line, of VOGN's, IVON's and those of `pl.ADVI`, which "
        "climbs the same bound in another way and stays at a straight line with 400 points, too",
        "OGN's curvature is that at its mean, where the squared gradients of points that it fits well vanish, so that its draws "
        "are far too wide",
    ),
    repetition="seed",
    one_axis=True,
    run=run,
    toy=toy,
    pictures=(
        Picture(
            name="boundaries",
            caption=(
                "The boundary of the mean weights (red), of draws (light red), and the entropy of the averaged prediction (grey)"
            ),
            needs=[row.name for row in ROWS],
            draw=draw,
        ),
    ),
)
