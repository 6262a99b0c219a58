"""What Laplace does to the calibration of trained networks (Daxberger et al., 2021, tables 1 and 2)."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..datasets import Dataset
from .crop_and_flip import crop_and_flip
from .study import Column, Outcome, Published, Row, Study

PRIOR_SCALE = 0.2  # the weight decay of 5e-4 that is usual for CIFAR-10: 1 / √(50,000 · 5e-4)


@dataclass(frozen=True, kw_only=True)
class CalibrationRow(Row):
    """One network on one data set, and one approximation around its weights.

    Attributes:
        data: "mnist", "fashion-mnist" or "cifar10".
        structure: Of the curvature; None predicts with the trained weights alone.
        subset: Which weights vary.
        tuned: Whether one prior precision is found by the evidence after training, instead of the one of training.
        seeds: Trainings.
        limit: Examples of each part, None for all.
        samples: Draws of a prediction.
    """

    data: str
    structure: str | None = None
    subset: str = "all"
    tuned: bool = False
    seeds: int = 3
    limit: int | None = None
    samples: int = 64


def run_seed(row: CalibrationRow, root: Path | None, seed: int) -> Outcome:
    """Train (rows of one data set share the trainings), approximate, and score."""
    data, strange = _load(row.data, row.limit, root)
    scores = _score(_approximated(row, data, seed), row, data, strange)
    return Outcome.of_seed(seed, scores)


@functools.lru_cache(maxsize=1)
def _load(name: str, limit: int | None, root: Path | None) -> tuple[Dataset, Tensor]:
    """The data, and images of another set that the network has never seen."""
    if name == "cifar10":
        data = pl.datasets.cifar10(root, normalised=True, limit=limit)
        assert data.input_mean is not None and data.input_scale is not None  # it is normalised
        return data, (pl.datasets.svhn(root, limit=limit).x_test - data.input_mean) / data.input_scale
    if name == "fashion-mnist":
        return pl.datasets.fashion_mnist(root, limit=limit), pl.datasets.mnist(root, limit=limit).x_test
    return pl.datasets.mnist(root, limit=limit), pl.datasets.fashion_mnist(root, limit=limit).x_test


def _network(name: str) -> torch.nn.Module:
    return pl.networks.WRN16_4() if name == "cifar10" else pl.networks.LeNet5()


def _trained(row: CalibrationRow, data: Dataset, seed: int) -> pl.Posterior:
    """The weights; kept beside other temporary files, so that the next row finds them."""
    mark = hashlib.sha256(repr((row.data, row.epochs, row.limit, seed, pl.__version__)).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"plausible-calibration-{mark}.plausible"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if path.is_file():
        return pl.load(path, device=device)
    network = _network(row.data)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=PRIOR_SCALE))
    photographs = row.data == "cifar10"
    method = pl.MAP(optimizer="sgd", learning_rate=0.1) if photographs else pl.MAP(learning_rate=2e-3)
    more: dict[str, Any] = {}
    if photographs:
        more = {"augment": crop_and_flip, "precision": "bf16" if torch.cuda.is_available() else None}
    posterior = pl.fit(model, data.train, method, epochs=row.epochs, seed=seed, init="reset", **more)
    posterior.save(path)
    return posterior


def _approximated(row: CalibrationRow, data: Dataset, seed: int) -> pl.Posterior:
    trained = _trained(row, data, seed)
    if row.structure is None:
        return trained
    method = pl.Laplace(
        structure=row.structure, subset=row.subset, prior_precision="marginal-likelihood" if row.tuned else None
    )
    return pl.fit(trained.model, data.train, method, init=trained, epochs=0, batch_size=500, seed=seed, progress=False)


def _score(posterior: pl.Posterior, row: CalibrationRow, data: Dataset, strange: Tensor) -> dict[str, float]:
    x, y = data.test
    inside, outside = (posterior.predict(part, num_samples=row.samples) for part in (x, strange))
    return {
        "accuracy": 100 * float(pl.metrics.accuracy(inside.probs, y)),
        "nll": float(pl.metrics.nll(inside.probs, y)),
        "ece": 100 * float(pl.metrics.ece(inside.probs, y)),
        "ood": 100 * float(pl.metrics.auroc_ood(1 - inside.probs.amax(1), 1 - outside.probs.amax(1))),
    }


def toy(row: CalibrationRow) -> CalibrationRow:
    """A few hundred images, one pass, one seed."""
    return replace(row, full=False, epochs=1, seeds=1, limit=200, samples=8)


def _variants(first: CalibrationRow) -> list[CalibrationRow]:
    """The trained network, and every approximation around it."""
    rows = [replace(first, name=f"{first.data}-map")]
    for subset in ("last-layer", "all"):
        for structure in ("diagonal", "kronecker"):
            for tuned in (False, True):
                name = f"{first.data}-{subset}-{structure}{'-tuned' if tuned else ''}"
                rows.append(replace(first, name=name, structure=structure, subset=subset, tuned=tuned))
    return rows


CIFAR10 = CalibrationRow(name="cifar10", data="cifar10", epochs=100, seeds=1)
MNIST = CalibrationRow(name="mnist", data="mnist", epochs=20)
STUDY = Study(
    name="laplace-calibration",
    title="Laplace and calibration",
    paper="Daxberger, Kristiadi, Immer, Eschenhagen, Bauer & Hennig (2021), Laplace redux: effortless Bayesian deep learning",
    about=(
        "WRN-16-4 on CIFAR-10 and LeNet-5 on MNIST and Fashion-MNIST are trained once; then a Gaussian is put around all "
        "weights or around the last layer's, and predictions average the linearised network over it. Strangers are SVHN, "
        "Fashion-MNIST and MNIST, told by the largest class probability."
    ),
    columns={
        "ece": Column(heading="ECE %", form=".2f", better="low", meaning="expected calibration error, 15 bins"),
        "nll": Column(heading="NLL", form=".4f", better="low", meaning="negative log likelihood"),
        "accuracy": Column(heading="accuracy %", form=".2f", better="high", meaning="share of right labels"),
        "ood": Column(heading="OOD AUROC %", form=".1f", better="high", meaning="telling strangers from test images"),
    },
    rows=(*_variants(MNIST), *_variants(replace(MNIST, data="fashion-mnist")), *_variants(CIFAR10)),
    published={
        "cifar10-map": Published(values={"accuracy": 94.8, "ece": 2.0, "nll": 0.172}, epochs=100),
        "cifar10-last-layer-kronecker-tuned": Published(
            values={"accuracy": 94.8, "ece": 0.8, "nll": 0.157}, epochs=100
        ),
    },
    differences=(
        "one precision for the whole subset is found by the evidence, at the trained weights",
        f"a normal prior of scale {PRIOR_SCALE} on all weights in training, norms included",
        "mixed precision (bf16) in training on a GPU; curvature and predictions in float32",
        "the paper's OOD figures average several sets of strangers, so they do not stand beside ours",
    ),
    repetition="seed",
    run_seed=run_seed,
    toy=toy,
)
