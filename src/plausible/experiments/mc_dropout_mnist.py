"""Dropout in a convolutional network on MNIST (Gal & Ghahramani, 2016, Bayesian convolutional neural networks, section 4.1).

Nothing was chosen by a test part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import plausible as pl

from ..core.posteriors import Dropout
from ..datasets import Dataset
from .results import Result
from .snapshots import Snapshots
from .study import Column, Outcome, Picture, Row, Study

RATE = 0.5
DROPPED: dict[str, dict[str, float]] = {
    "nowhere": {},
    "end": {"last": RATE},
    "everywhere": {"first": RATE, "second": RATE, "last": RATE},
}


@dataclass(frozen=True, kw_only=True)
class DigitsRow(Row):
    """Where a network has dropout, and how it predicts.

    Attributes:
        dropped: "nowhere", "end" (before the last layer) or "everywhere" (also after the convolutions).
        masks: Passes with masks of their own in a prediction; 0 is one pass without any.
        share: Of the training images.
        prior_scale: Deviation of the weights under the prior.
        batch_size: Examples a step.
        learning_rate: Of Adam at the start of its cosine.
        looks: How often during training the test error is taken.
        seeds: Trainings.
        limit: Examples of each part, None for all.
    """

    dropped: str = "everywhere"
    masks: int = 0
    share: float = 1.0
    prior_scale: float = 0.25
    batch_size: int = 256
    learning_rate: float = 1e-3
    looks: int = 10
    seeds: int = 3
    limit: int | None = None


class LeNet(nn.Module):
    """conv 20 (5 x 5), pool, conv 50 (5 x 5), pool, 500, 10, with ReLUs: 431,080 weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 20, 5)
        self.second = nn.Conv2d(20, 50, 5)
        self.third = nn.Linear(50 * 4 * 4, 500)
        self.last = nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of 28 x 28 images."""
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.last(torch.relu(self.third(x.flatten(1))))


def run(row: DigitsRow, root: Path | None) -> Outcome:
    """Train once per seed (rows that differ in their predictions share it) and score every snapshot on the test images."""
    data = _load(row.limit, root)
    trained = _trained(replace(row, name="", masks=0), root)
    scored = [[_score(at, row, data) for at in moments] for moments in trained]
    looks = len(scored[0])
    return Outcome(
        scores={name: [moments[-1][name] for moments in scored] for name in scored[0][-1]},
        seeds=list(range(row.seeds)),
        details={
            "curve": {
                "epoch": [row.epochs * (look + 1) / looks for look in range(looks)],
                "error": [[moment["error"] for moment in moments] for moments in scored],
            }
        },
    )


@functools.lru_cache(maxsize=1)
def _load(limit: int | None, root: Path | None) -> Dataset:
    return pl.datasets.mnist(root, limit=limit)


@functools.lru_cache(maxsize=1)
def _trained(row: DigitsRow, root: Path | None) -> list[list[pl.Posterior]]:
    """For every seed the posteriors at all moments."""
    data = _load(row.limit, root)
    count = round(row.share * len(data.x_train))
    method = method_for(row)
    model = pl.BayesianModel(LeNet(), pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=row.prior_scale))
    found: list[list[pl.Posterior]] = []
    for seed in range(row.seeds):
        moments = pl.fit(
            model, (data.x_train[:count], data.y_train[:count]), Snapshots(base=method, count=row.looks), seed=seed,
            epochs=row.epochs, batch_size=row.batch_size, init="reset",
        )  # fmt: skip
        found.append(moments.components)
    return found


def method_for(row: DigitsRow) -> pl.MAP | pl.MCDropout:
    """How the row's network is trained."""
    climb = pl.MAP(learning_rate=row.learning_rate)
    return pl.MCDropout(rate=DROPPED[row.dropped], base=climb) if DROPPED[row.dropped] else climb


def _score(posterior: pl.Posterior, row: DigitsRow, data: Dataset) -> dict[str, float]:
    x, y = (part.to(posterior.device) for part in data.test)
    if row.masks:
        predicted = posterior.predict(x, num_samples=row.masks)
    else:
        point = posterior.weight_average() if isinstance(posterior, Dropout) else posterior
        predicted = point.predict(x)
    return {
        "error": 100 * (1 - float(pl.metrics.accuracy(predicted.probs, y))),
        "nll": float(-predicted.log_prob(y).double().mean()),
        "ece": 100 * float(pl.metrics.ece(predicted.probs, y)),
    }


def toy(row: DigitsRow) -> DigitsRow:
    """A few hundred images, two passes over them, two looks."""
    return replace(
        row, full=False, epochs=2, batch_size=50, looks=2, seeds=2, limit=100, masks=min(row.masks, 3)
    )  # fmt: skip


def draw_errors(results: Mapping[str, Result], path: Path) -> None:
    """The test error along training: the mean over seeds, and from the best to the worst of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for panel, (title, ending) in zip(figure.subplots(1, 2), PARTS.items(), strict=True):
        for name, colour in COLOURS.items():
            curve = results[f"{name}{ending}"].record["details"]["curve"]
            errors = torch.tensor(curve["error"], dtype=torch.float64)
            panel.plot(curve["epoch"], errors.mean(0), ".-", color=colour, linewidth=1.2, label=name)
            low, high = errors.amin(0), errors.amax(0)
            panel.fill_between(curve["epoch"], low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("epoch", fontsize=9)
        panel.set_ylabel("test error %", fontsize=9)
        panel.grid(alpha=0.3, which="both")
        panel.tick_params(labelsize=8, which="both")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


PARTS = {"60,000 digits": "", "15,000 digits": "-quarter"}
COLOURS = {
    "no-dropout": "#7a7a7a",
    "dropout-end": "#e08a00",
    "bayesian-weight-averaging": "#2c8a4b",
    "bayesian-mc": "#1f5fa8",
}
BAYESIAN = DigitsRow(name="bayesian-weight-averaging", epochs=60)
FULL = (
    replace(BAYESIAN, name="no-dropout", dropped="nowhere"),
    replace(BAYESIAN, name="dropout-end", dropped="end"),
    BAYESIAN,
    replace(BAYESIAN, name="bayesian-mc", masks=50),
)
STUDY = Study(
    name="mc-dropout-mnist",
    title="MC dropout in a convolutional network on MNIST",
    paper=(
        "Gal & Ghahramani (2016), Bayesian convolutional neural networks with Bernoulli approximate variational inference"
    ),
    about=(
        "A LeNet with two convolutions is trained without dropout, with dropout before its last layer, and with dropout after "
        "every convolution too, on all digits and on the first quarter of them. Weight averaging is one pass without masks; "
        "bayesian-mc averages 50 passes with masks. These two rows are one training, so that the second takes little time. "
        "The paper shows its errors in a figure, without numbers."
    ),
    columns={
        "error": Column(heading="error %", form=".2f", better="low", meaning="share of wrong labels"),
        "nll": Column(heading="NLL", form=".4f", better="low", meaning="negative log likelihood"),
        "ece": Column(heading="ECE %", form=".2f", better="low", meaning="expected calibration error, 15 bins"),
    },
    rows=(*FULL, *(replace(row, name=f"{row.name}-quarter", share=0.25, epochs=120) for row in FULL)),
    published={},
    differences=(
        "Adam, whose rate falls from 0.001 to zero along a cosine, for 60 epochs (120 on a quarter) with batches of 256; the "
        "paper has SGD with batches of 64 for far longer",
        "a normal prior, so that less data means more weight decay",
        "ReLUs after the convolutions too",
    ),
    repetition="seed",
    run=run,
    toy=toy,
    pictures=(
        Picture(
            name="errors",
            caption="Test error along training: the mean of three seeds, and from the best to the worst of them",
            needs=tuple(f"{name}{ending}" for ending in PARTS.values() for name in COLOURS),
            draw=draw_errors,
        ),
    ),
)
