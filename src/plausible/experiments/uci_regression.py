"""What the studies of UCI regression share: the rows, the network with its prior, the splits and the scores.

What a paper leaves open was chosen on training data alone: a fifth of the training part of splits 0 to 5 was held out,
networks were trained on the rest, and the likelihood of what was held out was compared on boston, yacht and concrete, so that
one setting serves every data set. No test part was looked at. What mattered was the prior of the noise head. With the prior
of the mean head, networks become certain about training targets that they have fitted: the held-out negative log likelihood
of an ensemble on boston grows from 2.64 after 40 epochs to 2.96 after 200 and 3.61 after 600 (splits 0 to 3). Held closer to
zero, the noise varies with the inputs no more than the data ask for: 2.61 after 100 epochs, 2.66 after 200 (splits 0 to 5).
A hundred epochs are a compromise of cost and score: after 200, yacht gains (0.59 to 0.26) and boston loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

import plausible as pl

from ..core.method import Method
from ..core.posteriors import Posterior
from ..datasets import Dataset
from .study import Outcome, Row

AnyRow = TypeVar("AnyRow", bound="UCIRow")
SEEDS_PER_SPLIT = 1000  # so that no two networks of a row share a seed


@dataclass(frozen=True, kw_only=True)
class UCIRow(Row):
    """A data set and how networks are trained on its splits.

    Attributes:
        data: The folder of the data set.
        splits: How many of its splits, from the first.
        limit: Keep only so many examples of each part.
        hidden: Width of the hidden layer.
        batch_size: Examples a step.
        learning_rate: Of Adam.
        hidden_scale: Prior deviation of the hidden layer's weights times the root of their number of inputs.
        mean_scale: The same for the weights that give the mean.
        noise_scale: The same for the weights that give the noise.
        bias_scale: Prior deviation of every bias.
    """

    data: str
    splits: int = 20
    limit: int | None = None
    hidden: int = 50
    batch_size: int = 100
    learning_rate: float = 0.01
    hidden_scale: float = 1.0
    mean_scale: float = 1.0
    noise_scale: float = 0.3
    bias_scale: float = 1.0


class MeanAndNoise(nn.Module):
    """One hidden layer of ReLUs, and two heads on it: the mean of the target and the raw scale of its noise.

    The same functions as one layer with two outputs; as two, they can have two priors.
    """

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.mean = nn.Linear(hidden, 1)
        self.noise = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The mean and the raw scale, side by side."""
        features = torch.relu(self.hidden(x))
        return torch.cat([self.mean(features), self.noise(features)], -1)


def model_for(row: UCIRow, inputs: int) -> pl.BayesianModel:
    """Normal noise whose scale depends on the inputs, and a normal prior."""

    def prior(scale: float) -> pl.priors.Prior:
        return pl.priors.fan_in(pl.priors.Normal(scale=scale))

    return pl.BayesianModel(
        MeanAndNoise(inputs, row.hidden),
        likelihood=pl.likelihoods.HeteroscedasticNormal(),
        prior={
            "*.bias": pl.priors.Normal(scale=row.bias_scale),
            "hidden.weight": prior(row.hidden_scale),
            "mean.weight": prior(row.mean_scale),
            "noise.weight": prior(row.noise_scale),
        },
    )


def fit_every_split(row: UCIRow, sets: Sequence[Dataset], method: Method, members: int) -> list[list[Posterior]]:
    """`members` posteriors from starts of their own for every split, all of them in one vectorised run."""
    data = [split.train for split in sets for _ in range(members)]
    found = pl.fit_many(
        model_for(row, sets[0].x_train.shape[1]), data, method, seed=seeds(row, members), epochs=row.epochs,
        batch_size=row.batch_size, init="reset",
    )  # fmt: skip
    return [found[i : i + members] for i in range(0, len(found), members)]


def seeds(row: UCIRow, members: int) -> list[int]:
    """The seed of every network of a row."""
    return [SEEDS_PER_SPLIT * split + member for split in range(row.splits) for member in range(members)]


def load_splits(row: UCIRow, root: Path | None) -> list[Dataset]:
    """The splits, standardised by their training parts."""
    there = pl.datasets.uci_splits(row.data, root)
    if row.splits > there:
        raise ValueError(f"{row.name} asks for {row.splits} splits, and {row.data} has {there}")
    return [pl.datasets.uci(row.data, split, root, limit=row.limit) for split in range(row.splits)]


def outcome(
    row: UCIRow, root: Path | None, fit: Callable[[list[Dataset]], Sequence[Posterior]], used: Sequence[int]
) -> Outcome:
    """Load the splits, fit them and score each posterior on its test part."""
    sets = load_splits(row, root)
    scored = [score(posterior, split) for posterior, split in zip(fit(sets), sets, strict=True)]
    return Outcome(scores={name: [s[name] for s in scored] for name in scored[0]}, seeds=list(used))


def score(posterior: Posterior, split: Dataset, num_samples: int = 256) -> dict[str, float]:
    """Scores on the test part in the target's own units.

    nll: of the true mixture over networks. gaussian_nll: of the normal with the mixture's mean and variance.
    """
    x, y = split.test
    predicted = posterior.predict(x, num_samples=num_samples)
    mean, variance = predicted.mean.double(), predicted.variance.double()
    # The density of scale · y is that of y divided by the scale.
    units = math.log(split.target_scale)
    gaussian = 0.5 * (torch.log(2 * math.pi * variance) + (y - mean) ** 2 / variance)
    return {
        "nll": float(-predicted.log_prob(y).double().mean()) + units,
        "gaussian_nll": float(gaussian.mean()) + units,
        "rmse": float(((y - mean) ** 2).mean().sqrt()) * split.target_scale,
    }


def toy(row: AnyRow) -> AnyRow:
    """Two splits, a few examples and a few passes."""
    return replace(row, full=False, epochs=8, splits=2, limit=60)
