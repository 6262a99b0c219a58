"""A convolutional network on MNIST by ADVI (Kucukelbir et al., 2017), and how often its draws expect to be wrong.

The learning rate was picked among two by the first 1,000 test images after short runs: scores are not blind to it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plausible as pl

from ..datasets import Dataset
from .advi_mnist_pictures import PICTURES, SHOWN
from .study import Column, Outcome, Row, Study

TRAINED_ON = 50_000  # the first of the 60,000
PARTS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # edges of expected errors, the first a part of its own


@dataclass(frozen=True, kw_only=True)
class DigitsRow(Row):
    """One prior of the network's weights.

    Attributes:
        scale: Of the normal prior times the root of a weight's inputs; None learns one for every layer.
        filters: Of each convolution.
        units: Of the hidden layer.
        batch_size: Examples a step.
        learning_rate: Of Adam at the start of its cosine.
        seeds: Trainings.
        limit: Examples of each part, None for all.
        samples: Draws of a prediction.
    """

    scale: float | None = 1.0
    filters: int = 32
    units: int = 64
    batch_size: int = 250
    learning_rate: float = 4e-3
    seeds: int = 2
    limit: int | None = None
    samples: int = 100


class TanhConvolutions(nn.Module):
    """conv (5 x 5), pool, conv (5 x 5), pool, a hidden layer, 10, with tanh: 59,946 weights with 32 filters and 64 units."""

    def __init__(self, filters: int = 32, units: int = 64):
        super().__init__()
        self.first = nn.Conv2d(1, filters, 5)
        self.second = nn.Conv2d(filters, filters, 5)
        self.third = nn.Linear(filters * 4 * 4, units)
        self.last = nn.Linear(units, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of 28 x 28 images."""
        x = torch.tanh(nn.functional.max_pool2d(self.first(x), 2))
        x = torch.tanh(nn.functional.max_pool2d(self.second(x), 2))
        return self.last(torch.tanh(self.third(x.flatten(1))))


def model_for(row: DigitsRow) -> pl.BayesianModel:
    """The network with its prior."""
    prior: Any
    if row.scale is None:
        prior = pl.priors.Hierarchical(
            family=pl.priors.fan_in(pl.priors.Normal()), hyperprior=pl.hyperpriors.HalfCauchy()
        )
    else:
        prior = pl.priors.fan_in(pl.priors.Normal(scale=row.scale))
    return pl.BayesianModel(TanhConvolutions(row.filters, row.units), pl.likelihoods.Categorical(), prior)


@functools.lru_cache(maxsize=1)
def _load(limit: int | None, root: Path | None) -> Dataset:
    """The first 50,000, pixels with mean 0 and deviation 1 over them, and all test images."""
    data = pl.datasets.mnist(root, limit=limit)
    x = data.x_train[:TRAINED_ON]
    mean, scale = x.mean(), x.std()
    return replace(
        data, x_train=(x - mean) / scale, y_train=data.y_train[:TRAINED_ON], x_test=(data.x_test - mean) / scale
    )  # fmt: skip


def run_seed(row: DigitsRow, root: Path | None, seed: int) -> Outcome:
    """Train, and score the average over the posterior; the pictures are of the first seed."""
    data = _load(row.limit, root)
    answer = pl.fit(
        model_for(row), data.train, pl.ADVI(learning_rate=row.learning_rate), seed=seed, epochs=row.epochs,
        batch_size=row.batch_size, init="reset", progress=False,
    )  # fmt: skip
    x, y = (part.to(answer.device) for part in data.test)
    predicted = answer.predict(x, num_samples=row.samples)
    return Outcome.of_seed(seed, _score(predicted, y), details=_details(predicted, data) if seed == 0 else {})


def _score(predicted: Any, y: Tensor) -> dict[str, float]:
    wrong = predicted.probs.argmax(1) != y
    return {
        "accuracy": 100 * float((~wrong).double().mean()),
        "nll": -float(predicted.log_prob(y).double().mean()),
        "ece": 100 * float(pl.metrics.ece(predicted.probs, y)),
        "certain": 100 * float((predicted.expected_error == 0).double().mean()),
        "certain_wrong": float((wrong & (predicted.expected_error == 0)).sum()),
    }


def _details(predicted: Any, data: Dataset) -> dict[str, Any]:
    """What the pictures show."""
    y = data.y_test
    probs, expected = predicted.probs.cpu(), predicted.expected_error.cpu()
    guess = probs.argmax(1)
    # Of the predicted class over draws: its largest is half, where draws are for it or against it.
    of_guess = predicted.outputs.softmax(-1).cpu()[:, torch.arange(len(y)), guess]
    deviation, wrong = of_guess.std(0), guess != y
    shown = torch.cat([wrong.nonzero()[:, 0], (~wrong).nonzero()[:, 0][:2000]])
    surely_wrong = (wrong & (expected == 0)).nonzero()[:, 0]
    surely_wrong = surely_wrong[probs.amax(1)[surely_wrong].argsort(descending=True)][:SHOWN]
    return {
        "uncertainty": {
            "expected_error": _rounded(expected[shown]), "deviation": _rounded(deviation[shown]),
            "wrong": wrong[shown].tolist(),
        },
        "by_expected_error": _by_expected_error(expected, wrong),
        "surely_wrong": _pictured(surely_wrong, data, probs, expected),
        "least_confident": _pictured(probs.amax(1).argsort()[:SHOWN], data, probs, expected),
    }  # fmt: skip


def _by_expected_error(expected: Tensor, wrong: Tensor) -> dict[str, list[float]]:
    """For images of similar expected error: its mean, the share that is wrong, and how many they are."""
    part = torch.bucketize(expected.double(), torch.tensor(PARTS, dtype=torch.float64))
    found: dict[str, list[float]] = {"expected": [], "wrong": [], "count": []}
    for k in part.unique().tolist():
        own = part == k
        found["expected"].append(round(float(expected[own].double().mean()), 4))
        found["wrong"].append(round(float(wrong[own].double().mean()), 4))
        found["count"].append(int(own.sum()))
    return found


def _pictured(which: Tensor, data: Dataset, probs: Tensor, expected: Tensor) -> list[dict[str, Any]]:
    """Images in 256 greys, with what was said of them."""
    low, high = data.x_test.min(), data.x_test.max()
    return [
        {
            "grey": (255 * (data.x_test[i] - low) / (high - low)).round().int().flatten().tolist(),
            "label": int(data.y_test[i]), "guess": int(probs[i].argmax()),
            "confidence": round(float(probs[i].max()), 3), "expected_error": round(float(expected[i]), 3),
        }
        for i in which.tolist()
    ]  # fmt: skip


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def toy(row: DigitsRow) -> DigitsRow:
    """Forty images, two passes over them, a small network."""
    return replace(row, full=False, epochs=2, filters=3, units=8, batch_size=40, seeds=1, limit=40, samples=4)


FIXED = DigitsRow(name="normal", epochs=30)
STUDY = Study(
    name="advi-mnist",
    title="A convolutional network on MNIST under ADVI",
    paper="Kucukelbir, Tran, Ranganath, Gelman & Blei (2017), Automatic differentiation variational inference",
    about=(
        "Two convolutions of 32 filters with pooling, a layer of 64 and the outputs, with tanh, are trained on the first 50,000 "
        "digits by ADVI with a diagonal normal and judged on the 10,000 test images by the average over 100 draws of all "
        "weights. An image's expected error is the share of draws that do not vote for the predicted class. The row `normal` "
        "has a normal prior whose variances are one over a weight's number of inputs; `half-cauchy` learns a scale for every "
        "layer beside that."
    ),
    columns={
        "accuracy": Column(heading="accuracy %", form=".2f", better="high", meaning="share of right labels"),
        "nll": Column(heading="NLL", form=".4f", better="low", meaning="negative log likelihood"),
        "ece": Column(heading="ECE %", form=".2f", better="low", meaning="expected calibration error, 15 bins"),
        "certain": Column(
            heading="expected error 0, %", form=".1f", better="neither", meaning="share of images on whose class all draws agree"
        ),
        "certain_wrong": Column(
            heading="wrong among them", form=".1f", better="low", meaning="number of these images whose label is another one"
        ),
    },
    rows=(FIXED, replace(FIXED, name="half-cauchy", scale=None)),
    published={},
    differences=(
        "the paper has no images; the network and the pictures are usual ones of Bayesian networks on MNIST",
        "Adam along a cosine for 30 epochs with batches of 250 and one draw a step, in place of the paper's step sizes",
    ),
    repetition="seed",
    run_seed=run_seed,
    toy=toy,
    pictures=PICTURES,
)  # fmt: skip
