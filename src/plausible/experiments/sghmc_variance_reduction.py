"""What variance reduction does for SGHMC at equal cost (Dubey et al., 2016; Li et al., 2019), on UCI regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plausible as pl

from ..core.data import make_source
from ..core.partition import Partitioned
from ..core.source import Source
from ..datasets import Dataset
from ..inference.mcmc.variance_reduction import Memory, reduction
from ..weights import tree
from .study import Column, Outcome, Picture, Row, Study

PLACES = 5  # of the run, at which the gradient's variance is measured


@dataclass(frozen=True, kw_only=True)
class ReductionRow(Row):
    """A way to take gradients; an epoch is as many gradients of an example as there are examples.

    Attributes:
        reduced: "svrg", "saga" or None.
        data: The folder of the data set.
        splits: How many of its splits, from the first.
        limit: Keep only so many examples of each part.
        hidden: Width of the hidden layer.
        batch_size: Examples a step.
        rate: h √N.
    """

    reduced: str | None = None
    data: str = "concrete"
    splits: int = 10
    limit: int | None = None
    hidden: int = 50
    batch_size: int = 32
    rate: float = 0.05

    @property
    def cost(self) -> float:
        """Epochs of gradients that an epoch of steps takes: SVRG has two a batch, and a sweep."""
        return 3.0 if self.reduced == "svrg" else 1.0


def run(row: ReductionRow, root: Path | None) -> Outcome:
    """All splits in one vectorised run."""
    sets = [pl.datasets.uci(row.data, split, root, limit=row.limit) for split in range(row.splits)]
    count = sets[0].x_train.shape[0]
    per_epoch = math.ceil(count / row.batch_size)
    method = pl.SGHMC(step_size=row.rate / math.sqrt(count), variance_reduction=row.reduced)
    steps = int(row.epochs * per_epoch / row.cost)
    model = _model(row, sets[0])
    posteriors = pl.fit_many(
        model, [s.train for s in sets], method, seed=list(range(row.splits)), steps=steps, batch_size=row.batch_size,
        init="reset", progress=False,
    )  # fmt: skip
    curves = [_course(p, s) for p, s in zip(posteriors, sets, strict=True)]
    spreads = [_variances(row, model, p, s, i) for i, (p, s) in enumerate(zip(posteriors, sets, strict=True))]
    shares = torch.linspace(0, 1, len(curves[0]))
    return Outcome(
        scores={
            "variance": [s[-1] for s in spreads],
            "nll": [c[-1] for c in curves],
            "early": [c[len(c) // 4] for c in curves],
        },
        seeds=list(range(row.splits)),
        details={
            "epochs": [round(row.epochs * (0.4 + 0.6 * float(s)), 2) for s in shares],  # two fifths are burn-in
            "nll": _means(curves),
            "variance": _means(spreads),
        },
    )


def _model(row: ReductionRow, data: Dataset) -> pl.BayesianModel:
    network = nn.Sequential(nn.Linear(data.x_train.shape[1], row.hidden), nn.Tanh(), nn.Linear(row.hidden, 1))
    return pl.BayesianModel(
        network, pl.likelihoods.Normal(scale="learn"), prior=pl.priors.fan_in(pl.priors.Normal(scale=1.0))
    )


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [round(math.fsum(column) / len(column), 5) for column in zip(*rows, strict=True)]


def _course(posterior: Any, data: Dataset, points: int = 30, most: int = 150) -> list[float]:
    """The test NLL of the mixture over the draws so far, at places evenly spread along the chain."""
    x, y = data.test
    picks = torch.linspace(0, len(posterior) - 1, min(most, len(posterior))).long()
    thinned = pl.posteriors.Samples(posterior.model, {k: w[picks] for k, w in posterior.draws.items()})
    each = []
    for i in range(len(picks)):
        one = pl.posteriors.Samples(thinned.model, {k: w[i : i + 1] for k, w in thinned.draws.items()})
        each.append(one.predict(x).log_prob(y).double())
    running = torch.logcumsumexp(torch.stack(each), 0) - torch.arange(1.0, len(each) + 1).log()[:, None]
    nll = -running.mean(1) + math.log(data.target_scale)
    return [float(nll[int(i)]) for i in torch.linspace(0, len(nll) - 1, points)]


def _variances(row: ReductionRow, model: pl.BayesianModel, posterior: Any, data: Dataset, seed: int) -> list[float]:
    """Mean square of the gradient's error in a coordinate, at places along the chain, over all batches of an epoch.

    The memory is rebuilt from the chain's own past: SVRG's snapshot is half an epoch old, SAGA's rows as old as chance
    has it, as they are in the mean of a run.
    """
    source = make_source(model, data.train, batch_size=row.batch_size, seed=seed, device=posterior.device)
    bound = model.bound(num_data=source.num_data, steps_per_epoch=source.steps_per_epoch, training=True)
    epoch = source.steps_per_epoch
    found = []
    for k in range(PLACES):
        now = min(len(posterior) - 1, (k + 1) * len(posterior) // PLACES - 1)
        here = _draw(posterior, now)
        own = Partitioned(source) if row.reduced == "saga" else source
        memory = _memory(row, bound, own, posterior, now)
        exact = _flat(bound.slope(here, data.train)[1])
        batches: Iterator[Any] = own.sweep() if row.reduced == "saga" else (own.batch(s) for s in range(epoch))
        errors = [
            float((_flat(reduction(row.reduced).slope(bound, tree.clone(memory), here, b)[1]) - exact).square().mean())
            for b in batches
        ]
        found.append(math.fsum(errors) / len(errors))
    return found


def _memory(row: ReductionRow, bound: Any, own: Source, posterior: Any, now: int) -> Memory:
    kind, epoch = reduction(row.reduced), own.steps_per_epoch
    memory = kind.init(bound, _draw(posterior, now))
    if row.reduced is None:
        return memory
    ages = torch.distributions.Geometric(1 / epoch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(now)
        for number, batch in enumerate(own.sweep()):
            age = epoch // 2 if row.reduced == "svrg" else int(ages.sample()) + 1
            memory = kind.gather(bound, memory, _draw(posterior, max(0, now - age)), batch, number == 0)
    return memory


def _draw(posterior: Any, index: int) -> dict[str, Tensor]:
    return {k: w[index] for k, w in posterior.draws.items()}


def _flat(slope: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([s.flatten() for s in slope.values()]).double()


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Test NLL and gradient variance along the run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, result in results.items():
        details = result.record["details"]
        left.plot(details["epochs"], details["nll"], label=name)
        places = [details["epochs"][0] + (k + 1) / PLACES * (details["epochs"][-1] - details["epochs"][0])
                  for k in range(PLACES)]  # fmt: skip
        right.plot(places, details["variance"], "o-", markersize=3, label=name)
    left.set_ylabel("test NLL of the draws so far", fontsize=8)
    right.set_ylabel("gradient variance in a coordinate", fontsize=8)
    right.set_yscale("log")
    for panel in (left, right):
        panel.set_xlabel("gradient evaluations / N", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.savefig(path, metadata={"Software": None})


def toy(row: ReductionRow) -> ReductionRow:
    """Two splits, a few examples and a few passes."""
    return replace(row, full=False, epochs=24, splits=2, limit=60)


PLAIN = ReductionRow(name="plain", epochs=150)
ROWS = (PLAIN, replace(PLAIN, name="svrg", reduced="svrg"), replace(PLAIN, name="saga", reduced="saga"))
STUDY = Study(
    name="sghmc-variance-reduction",
    title="SGHMC with less noisy gradients",
    paper=(
        "Dubey, Reddi, Williamson, Póczos, Smola & Xing (2016), Variance reduction in stochastic gradient Langevin dynamics; "
        "Li, Zhang, Cheng, Zhu & Li (2019), Stochastic gradient Hamiltonian Monte Carlo with variance reduction"
    ),
    about=(
        "A network with a hidden layer of 50 tanh units and normal noise of unknown scale on concrete, sampled by SGHMC with "
        "one step size and as many gradients of examples in every row: so SVRG, whose step costs about three times a plain "
        "one, makes a third of the steps."
    ),
    columns={
        "variance": Column(
            heading="gradient variance", form=".3g", better="low",
            meaning="mean square error of a batch's gradient in a coordinate, at the end of the run",
        ),
        "nll": Column(heading="NLL", form=".3f", better="low", meaning="test, of the mixture over all draws"),
        "early": Column(heading="NLL early", form=".3f", better="low", meaning="the same of the first quarter of the draws"),
    },
    rows=ROWS,
    published={},
    differences=(
        "the papers draw curves and give no tables, so nothing stands beside ours",
        "a network in place of Bayesian linear and logistic regression",
        "SAGA remembers a gradient for each batch of a fixed partition, in place of one for each example",
    ),
    repetition="split",
    run=run,
    toy=toy,
    pictures=(
        Picture(
            name="course", caption="Test NLL and gradient variance against the number of gradients, means over splits",
            needs=["plain", "svrg"], draw=draw,
        ),
    ),
)  # fmt: skip
