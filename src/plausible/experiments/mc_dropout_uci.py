"""MC dropout on UCI regression (Gal & Ghahramani, 2016, table 1), by the protocol and the grids of their public experiments.

On every split a rate and a precision are chosen by the likelihood of the last fifth of the training part, and a new network is
trained on all of it. The precision is fixed, not learnt, and in the target's own units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import plausible as pl

from ..core.posteriors import Posterior
from ..datasets import Dataset
from ..datasets.dataset import standardised_table
from .study import Column, Outcome, Published, Row, Study

POINTS = 500  # test points that are predicted at a time
HELD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class DropoutRow(Row):
    """A data set and its grid; the other defaults are those of every row.

    Attributes:
        data: The folder of the data set.
        precisions: Of the target in its own units, to choose from.
        rates: Of dropout, to choose from.
        length_scale: Of the prior, which with the middle precision gives the weight decay.
        splits: How many of its splits, from the first.
        limit: Keep only so many examples of each part.
        hidden: Width of the hidden layer.
        batch_size: Examples a step.
        learning_rate: Of Adam.
        passes: Masks of a prediction.
    """

    data: str
    precisions: tuple[float, ...]
    rates: tuple[float, ...] = (0.005, 0.01, 0.05, 0.1)
    length_scale: float = 0.01
    splits: int = 20
    limit: int | None = None
    hidden: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    passes: int = 10_000


def run(row: DropoutRow, root: Path | None) -> Outcome:
    """Choose on every split, train again on its whole training part, and score its test part."""
    splits = [pl.datasets.uci(row.data, number, root, limit=row.limit) for number in range(row.splits)]
    chosen = choose(row, [held_out(split) for split in splits])
    seeds = [2 * number + 1 for number in range(row.splits)]
    final = fitted(row, splits, [rate for rate, _ in chosen], seeds)
    scored = [
        score(posterior, split, [precision], row.passes)[0]
        for posterior, split, (_, precision) in zip(final, splits, chosen, strict=True)
    ]
    return Outcome(
        scores={name: [s[name] for s in scored] for name in scored[0]},
        seeds=[seed for number in range(row.splits) for seed in (2 * number, 2 * number + 1)],
        details={"rate": [rate for rate, _ in chosen], "precision": [precision for _, precision in chosen]},
    )


def held_out(split: Dataset) -> Dataset:
    """The training part as a data set of its own: its last fifth is the test part, and the rest alone gives the scaling."""
    x, y = (part.double().numpy() for part in split.train)
    count = int((1 - HELD_OUT) * len(x))
    inner = standardised_table(split.name, "regression", (x[:count], y[:count, 0]), (x[count:], y[count:, 0]))
    return replace(
        inner,
        target_mean=split.target_mean + split.target_scale * inner.target_mean,
        target_scale=split.target_scale * inner.target_scale,
    )


def choose(row: DropoutRow, inner: Sequence[Dataset]) -> list[tuple[float, float]]:
    """The rate and the precision of every split with the highest likelihood of what is held out.

    A split's networks share their seed, so that they differ by their rates alone.
    """
    tried = [(number, rate) for number in range(len(inner)) for rate in row.rates]
    found = fitted(
        row, [inner[number] for number, _ in tried], [rate for _, rate in tried], [2 * number for number, _ in tried]
    )
    best = [(-math.inf, math.nan, math.nan)] * len(inner)
    for posterior, (number, rate) in zip(found, tried, strict=True):
        for told, precision in zip(
            score(posterior, inner[number], row.precisions, row.passes), row.precisions, strict=True
        ):
            best[number] = max(best[number], (told["log_likelihood"], rate, precision))
    return [(rate, precision) for _, rate, precision in best]


def model_for(row: DropoutRow, inputs: int) -> pl.BayesianModel:
    """Normal noise and the normal prior of their weight decay, which takes a precision to be that of standardised targets.

    Their loss has the squared error where the formula of the decay has half of it: half the decay, a scale √2 times as large.
    """
    middle = sorted(row.precisions)[len(row.precisions) // 2]
    prior, scale = pl.MCDropout.prior_from(precision=middle, length_scale=row.length_scale / 2**0.5)
    network = pl.networks.MLP(inputs, (row.hidden,), 1)
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=scale), prior)


def fitted(
    row: DropoutRow, data: Sequence[Dataset], rates: Sequence[float], seeds: Sequence[int]
) -> list[pl.Posterior]:
    """A network for each data set with its rate, all of them in one vectorised run."""
    climb = pl.MAP(learning_rate=row.learning_rate, schedule="constant")
    return pl.fit_many(
        model_for(row, data[0].x_train.shape[1]), [part.train for part in data],
        [pl.MCDropout(rate=rate, base=climb) for rate in rates],
        seed=list(seeds), epochs=row.epochs, batch_size=row.batch_size, init="reset",
    )  # fmt: skip


def score(posterior: Posterior, data: Dataset, precisions: Sequence[float], passes: int) -> list[dict[str, float]]:
    """The test part's log likelihood under each precision, and the error of the mean, in the target's own units."""
    x, y = (part.to(posterior.device) for part in data.test)
    squares, logs = [], []
    for points, truth in zip(x.split(POINTS), (y.double() * data.target_scale).split(POINTS), strict=True):
        outputs = posterior.predict(points, num_samples=passes).outputs.double() * data.target_scale
        squares.append((outputs.mean(0) - truth) ** 2)
        logs.append(torch.stack([log_mixture(outputs, truth, precision) for precision in precisions]))
    rmse = float(torch.cat(squares).mean().sqrt())
    return [{"log_likelihood": float(mean), "rmse": rmse} for mean in torch.cat(logs, 1).mean(1)]


def log_mixture(outputs: Tensor, y: Tensor, precision: float) -> Tensor:
    """log of the average over passes of N(y | output, 1 / precision), for outputs (passes, N, 1) and y (N, 1)."""
    parts = 0.5 * (math.log(precision / (2 * math.pi)) - precision * (outputs - y) ** 2)
    return torch.logsumexp(parts, 0).squeeze(-1) - math.log(len(outputs))


def toy(row: DropoutRow) -> DropoutRow:
    """Two splits, a few examples, a few passes of each kind."""
    return replace(row, full=False, epochs=3, splits=2, limit=40, rates=row.rates[1:3], passes=30)


def published(rmse: tuple[float, float], log_likelihood: tuple[float, float]) -> Published:
    """A line of the table: means and their standard errors."""
    return Published(
        values={"log_likelihood": log_likelihood[0], "rmse": rmse[0]},
        errors={"log_likelihood": log_likelihood[1], "rmse": rmse[1]},
        epochs=4000,
    )


BOSTON = DropoutRow(name="boston", data="bostonHousing", epochs=4000, precisions=(0.1, 0.15, 0.2))
STUDY = Study(
    name="mc-dropout-uci",
    title="MC dropout on UCI regression",
    paper="Gal & Ghahramani (2016), Dropout as a Bayesian approximation: representing model uncertainty in deep learning",
    about=(
        "A network with one hidden layer of 50 ReLUs, dropout before both layers, is trained for 4,000 epochs on each of the 20 "
        "standard splits; its rate of dropout and the precision of the targets are chosen on the last fifth of the training "
        "part. 10,000 passes with fresh masks are averaged. Inputs and targets are standardised on the training part; scores "
        "are in the target's own units. The numbers beside ours are those of the authors' public experiments with these "
        "settings."
    ),
    columns={
        "log_likelihood": Column(
            heading="log likelihood", form=".3f", better="high", meaning="of the mixture over passes"
        ),
        "rmse": Column(heading="RMSE", form=".4f", better="low", meaning="root mean squared error of the mean"),
    },
    rows=(
        BOSTON,
        replace(BOSTON, name="yacht", data="yacht", precisions=(0.25, 0.5, 0.75)),
        replace(BOSTON, name="concrete", data="concrete", precisions=(0.025, 0.05, 0.075)),
        replace(BOSTON, name="kin8nm", data="kin8nm", precisions=(150.0, 200.0, 250.0)),
    ),
    published={
        "boston": published(rmse=(2.904, 0.177), log_likelihood=(-2.402, 0.042)),
        "concrete": published(rmse=(4.826, 0.161), log_likelihood=(-2.937, 0.025)),
        "kin8nm": published(rmse=(0.0789, 0.0006), log_likelihood=(1.136, 0.007)),
        "yacht": published(rmse=(0.666, 0.049), log_likelihood=(-1.250, 0.015)),
    },
    differences=(
        "a network is trained once for each rate, with the weight decay of the middle precision (about 10⁻⁶ of the squared "
        "weights, and less), and judged under all three; the authors train one for each pair",
        "the networks of a split that are compared share their start, batches and coins; the authors' have their own",
        "PyTorch's usual start of the weights; the authors have that of Keras",
    ),
    repetition="split",
    run=run,
    toy=toy,
)
