"""Bayes by backprop on MNIST (Blundell et al., 2015, table 1), and beside it the small table of the bnn repository.

The prior's numbers are among those that the paper searched. Nothing was chosen by a test part.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plausible as pl

from ..datasets import Dataset
from .study import Column, Outcome, Published, Row, Study


@dataclass(frozen=True, kw_only=True)
class MNISTRow(Row):
    """One way to infer the weights of a fully connected network.

    Attributes:
        method: "bayes-by-backprop", "map" or "deep-ensemble".
        scales: Deviations of the prior's components; one is a normal prior.
        weights: Of the components.
        hidden: Widths of the hidden layers.
        batch_size: Examples a step.
        learning_rate: Of Adam.
        members: Networks of an ensemble.
        seeds: Trainings.
        limit: Examples of each part, None for all.
        samples: Draws of a prediction.
    """

    method: str = "bayes-by-backprop"
    scales: tuple[float, ...] = (0.1,)
    weights: tuple[float, ...] = (1.0,)
    hidden: tuple[int, ...] = (1200, 1200)
    batch_size: int = 1500
    learning_rate: float = 1e-3
    members: int = 10
    seeds: int = 3
    limit: int | None = None
    samples: int = 100


def run(row: MNISTRow, root: Path | None) -> Outcome:
    """Train once per seed and score the average over the posterior on the test images."""
    data = _load(row.limit, root)
    scored = [_score(posterior, row, data) for posterior in _fitted(row, data)]
    return Outcome(
        scores={name: [s[name] for s in scored] for name in scored[0]}, seeds=list(range(row.seeds)),
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _load(limit: int | None, root: Path | None) -> Dataset:
    """Pixels with mean 0 and deviation 1 over the training part."""
    data = pl.datasets.mnist(root, limit=limit)
    mean, scale = data.x_train.mean(), data.x_train.std()
    return replace(data, x_train=(data.x_train - mean) / scale, x_test=(data.x_test - mean) / scale)


def model_for(row: MNISTRow) -> pl.BayesianModel:
    """The network with its prior."""
    one = len(row.scales) == 1
    prior = pl.priors.Normal(scale=row.scales[0]) if one else pl.priors.ScaleMixture(row.scales, row.weights)
    return pl.BayesianModel(pl.networks.MLP((1, 28, 28), row.hidden, 10), pl.likelihoods.Categorical(), prior)


def _fitted(row: MNISTRow, data: Dataset) -> list[pl.Posterior]:
    seeds = range(row.seeds)
    course: dict[str, Any] = {"epochs": row.epochs, "batch_size": row.batch_size, "init": "reset"}
    climb = pl.MAP(learning_rate=row.learning_rate)
    if row.method == "deep-ensemble":
        method = pl.DeepEnsemble(members=row.members, base=climb)
        return [pl.fit(model_for(row), data.train, method, seed=seed, **course) for seed in seeds]
    alone = climb if row.method == "map" else pl.BayesByBackprop(learning_rate=row.learning_rate)
    return pl.fit_many(model_for(row), data.train, alone, seed=list(seeds), **course)


def _score(posterior: pl.Posterior, row: MNISTRow, data: Dataset) -> dict[str, float]:
    x, y = data.test
    predicted = posterior.predict(x, num_samples=row.samples)
    return {
        "error": 100 * (1 - float(pl.metrics.accuracy(predicted.probs, y))),
        "log_likelihood": float(predicted.log_prob(y).double().sum()),
        "ece": 100 * float(pl.metrics.ece(predicted.probs, y)),
    }


def toy(row: MNISTRow) -> MNISTRow:
    """A few hundred images, a small network, two passes."""
    return replace(
        row, full=False, epochs=2, hidden=(20, 20), batch_size=50, members=2, seeds=2, limit=200, samples=8
    )  # fmt: skip


MIXTURE = MNISTRow(name="scale-mixture", epochs=300, seeds=1, scales=(1.0, 0.0025), weights=(0.5, 0.5))
NORMAL = MNISTRow(name="normal", epochs=300, seeds=1)
STUDY = Study(
    name="bayes-by-backprop-mnist",
    title="Bayes by backprop on MNIST",
    paper="Blundell, Cornebise, Kavukcuoglu & Wierstra (2015), Weight uncertainty in neural networks",
    about=(
        "A network with two hidden layers of 1200 ReLUs is trained on the 60,000 digits and judged on the other 10,000, by the "
        "average over 100 draws of the weights. The rows normal-short, map and ensemble stand beside the table in the "
        "repository JavierAntoran/Bayesian-Neural-Networks, the others beside table 1 of the paper."
    ),
    columns={
        "error": Column(heading="error %", form=".2f", better="low", meaning="share of wrong labels"),
        "log_likelihood": Column(
            heading="log likelihood", form=".0f", better="high", meaning="summed over the test images"
        ),
        "ece": Column(heading="ECE %", form=".2f", better="low", meaning="expected calibration error, 15 bins"),
    },
    rows=(
        MIXTURE,
        NORMAL,
        replace(NORMAL, name="normal-short", epochs=200, batch_size=500),
        replace(NORMAL, name="map", method="map", epochs=20, batch_size=128),
        replace(NORMAL, name="ensemble", method="deep-ensemble", epochs=20, batch_size=128, seeds=1),
    ),
    published={
        "scale-mixture": Published(values={"error": 1.32}, epochs=600),
        "normal": Published(values={"error": 2.04}, epochs=600),
        "normal-short": Published(values={"error": 2.60, "log_likelihood": -1100}, epochs=200),
        "map": Published(values={"error": 1.58, "log_likelihood": -573}, epochs=10),
        "ensemble": Published(values={"error": 1.53, "log_likelihood": -497}, epochs=10),
    },
    differences=(
        "Adam with a cosine schedule; the paper has SGD at a constant rate",
        "batches of 1500 in the long rows, and outputs drawn in place of weights; the paper has batches of 128 and draws weights",
        "every batch has the same share of the KL; the paper gives more of it to the first ones of an epoch",
        "all 60,000 digits are trained on; the paper holds 10,000 out to choose its settings and its epoch",
        "pixels are standardised; the paper divides them by 126",
    ),
    repetition="seed",
    run=run,
    toy=toy,
)
