"""How many of 25 separate modes a chain finds (Zhang et al., 2020, figure 2)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..core.method import Method
from ..weights.rng import Keys, generator
from .study import Column, Outcome, Picture, Published, Row, Study, cpu_in_words

CENTRES = torch.cartesian_prod(torch.arange(-4.0, 5.0, 2.0), torch.arange(-4.0, 5.0, 2.0))
VARIANCE, GRADIENT_NOISE = 0.03, 1.0
NEAR, ENOUGH = 0.25, 100  # a mode is found if so many draws are so near
TOGETHER = 4  # chains that are pooled
START = 0x73746172


@dataclass(frozen=True, kw_only=True)
class GaussiansRow(Row):
    """A sampler; an epoch is a step.

    Attributes:
        sampler: "sgld", "cyclical-sgld", "sghmc", "hmc" or "nuts".
        step_size: ε of SGLD (that of the first 500 steps), h of the others; at the start of a cycle.
        cycles: How often the step size starts again.
        seeds: Repetitions, of four chains each.
        leapfrogs: Of a transition of HMC, or of one of NUTS on average, which make so many fewer.
    """

    sampler: str
    step_size: float
    cycles: int = 30
    seeds: int = 100
    leapfrogs: int = 10


class NoisyMixture(pl.LogDensity):
    """Equal normals about the centres; every row of x is a chain, and the gradient has noise N(0, V I).

    Gradient methods treat every number alike, so that rows never meet.
    """

    def __init__(self, rows: Tensor, noise: float):
        self.noise = noise
        super().__init__(log_density, {"x": rows})

    @property
    def needs_key(self) -> bool:
        """Whether gradients are noisy."""
        return self.noise > 0

    def objective(self, params: Mapping[str, Tensor], batch: Any, key: Tensor | None) -> Tensor:
        """The log density, and a random slope besides."""
        value = self.log_joint(params)
        if key is None:
            return value
        xi = Keys(key, key[0] * 0).normal_like(params["x"])
        return value + self.noise**0.5 * (params["x"] * xi).sum()


def log_density(params: Mapping[str, Tensor]) -> Tensor:
    """Summed over the rows of x, up to a constant."""
    gaps = params["x"].unsqueeze(-2) - CENTRES.to(params["x"])
    return torch.logsumexp(gaps.square().sum(-1) * (-0.5 / VARIANCE), -1).sum()


@dataclass(frozen=True)
class Decay:
    """The authors' schedule of SGLD: constant for 500 steps, then (t − 500)^−0.55."""

    steps: int

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        return (progress * self.steps - 500).clamp(min=1.0) ** -0.55


def method_of(row: GaussiansRow) -> Method:
    """The row's sampler in the library's words."""
    sgld = pl.SGLD(step_size=row.step_size, gradient_noise=GRADIENT_NOISE)
    sghmc = pl.SGHMC(step_size=row.step_size, gradient_noise=GRADIENT_NOISE)
    if row.sampler == "cyclical-sgld":
        length = row.epochs / row.cycles
        dropped = min(50.0, length / 2)
        kept = int(length - dropped) - 1
        return pl.CyclicalSGMCMC(base=sgld, cycles=row.cycles, exploration=dropped / length, samples_per_cycle=kept)
    burn_in = min(500, row.epochs // 4)
    if row.sampler == "sgld":
        return replace(sgld, burn_in=burn_in, schedule=Decay(row.epochs))
    if row.sampler == "sghmc":
        return replace(sghmc, burn_in=burn_in)
    exact: dict[str, Any] = {"step_size": row.step_size, "mass": "identity", "warmup": burn_in // row.leapfrogs}
    if row.sampler == "nuts":
        return pl.NUTS(**exact)
    return pl.HMC(**exact, trajectory_length=row.step_size * row.leapfrogs)


def chains(row: GaussiansRow) -> Tensor:
    """The draws of all chains, (draws, chains, 2)."""
    count = TOGETHER * row.seeds
    starts = 20 * torch.rand(count, 2, generator=generator(0, START)) - 10
    settings: dict[str, Any] = {"seed": 0, "device": "cpu", "progress": False}
    if row.sampler in ("hmc", "nuts"):
        target, settings["num_modes"] = NoisyMixture(starts[0], 0.0), count
        mixture = pl.fit(
            target, None, method_of(row), steps=row.epochs // row.leapfrogs, init={"x": starts}, **settings
        )
        return torch.stack([chain.draws["x"] for chain in mixture.components], 1)  # type: ignore[attr-defined]
    target = NoisyMixture(starts, GRADIENT_NOISE)
    return pl.fit(target, None, method_of(row), steps=row.epochs, **settings).draws["x"]  # type: ignore[attr-defined]


def run(row: GaussiansRow, root: Path | None) -> Outcome:
    """All chains at once; the first of four stands alone too."""
    draws = chains(row)
    near = torch.stack([((draws - c).square().sum(-1) < NEAR**2).sum(0) for c in CENTRES], -1)  # chains, modes
    apart = near.reshape(row.seeds, TOGETHER, -1)
    alone = (apart[:, 0] >= ENOUGH).sum(-1).tolist()
    pooled = (apart.sum(1) >= ENOUGH).sum(-1).tolist()
    shown = draws[:: max(1, len(draws) // 800), 0]
    return Outcome(
        scores={"one": alone, "four": pooled}, seeds=list(range(row.seeds)), device=cpu_in_words(),
        details={
            "draws": [[round(v, 2) for v in point] for point in shown.tolist()],
            "median": [statistics.median(alone), statistics.median(pooled)],
        },
    )  # fmt: skip


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws of one chain of every sampler."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(results), 3.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for panel, (name, result) in zip(panels, results.items(), strict=True):
        details = result.record["details"]
        panel.plot(CENTRES[:, 0], CENTRES[:, 1], "o", color="#c0392b", markersize=9, fillstyle="none", alpha=0.5)
        panel.plot(*zip(*details["draws"], strict=True), ".", color="#1f5fa8", markersize=2)
        one, four = details["median"]
        panel.set_title(f"{name}\nmedian {one:g} modes, of four chains {four:g}", fontsize=8)
        panel.set(xlim=(-6, 6), ylim=(-6, 6), aspect="equal")
        panel.tick_params(labelsize=7)
    figure.savefig(path, metadata={"Software": None})


def toy(row: GaussiansRow) -> GaussiansRow:
    """A few hundred steps of eight chains."""
    return replace(row, full=False, epochs=400, seeds=2, cycles=2)


SGLD = GaussiansRow(name="sgld", sampler="sgld", epochs=50_000, step_size=0.043)
ROWS = (
    SGLD,
    replace(SGLD, name="cyclical-sgld", sampler="cyclical-sgld", step_size=0.07),
    replace(SGLD, name="sghmc", sampler="sghmc", step_size=0.1),
    replace(SGLD, name="hmc", sampler="hmc", step_size=0.1, leapfrogs=25),
    replace(SGLD, name="nuts", sampler="nuts", step_size=0.1, leapfrogs=5),
)
STUDY = Study(
    name="csgmcmc-25gaussians",
    title="Modes found by cyclical stochastic gradient MCMC",
    paper="Zhang, Li, Zhang, Chen & Wilson (2020), Cyclical stochastic gradient MCMC for Bayesian deep learning",
    about=(
        "A mixture of 25 equal normals of variance 0.03 on a grid of spacing 2, gradients with noise N(0, I), and 50,000 "
        "gradients a chain from a start uniform on (−10, 10)². A mode is found if at least 100 draws are within 0.25 of its "
        "centre."
    ),
    columns={
        "one": Column(heading="one chain", form=".2f", better="high", meaning="modes that one chain finds, of 25"),
        "four": Column(heading="four chains", form=".2f", better="high", meaning="modes that four chains find together"),
    },
    rows=ROWS,
    published={
        "sgld": Published(values={"one": 1, "four": 4}, epochs=50_000),
        "cyclical-sgld": Published(values={"one": 20, "four": 25}, epochs=50_000),
    },
    differences=(
        "the published numbers are counted in one stored run of the authors each; ours are means over 100 seeds (the "
        "authors' rule finds 15 to 20 modes with one cyclical chain, 18 in the median of 240 seeds)",
        "no noise is put in during the first 50 steps of a cycle, which are dropped; the authors put it in there too",
        "the first 500 steps of SGLD, SGHMC, HMC and NUTS are not counted",
        "HMC and NUTS have exact gradients, HMC 25 and NUTS about 5 for each of its draws",
    ),
    repetition="seed",
    run=run,
    toy=toy,
    pictures=(
        Picture(
            name="draws", caption="About 800 draws of one chain of each sampler, and the centres of the 25 modes",
            needs=["sgld", "cyclical-sgld", "sghmc"], draw=draw,
        ),
    ),
)  # fmt: skip
