"""Natural-gradient methods and their rivals on CIFAR-10 (Osawa et al., 2019, table 1).

The settings of Adam and VOGN are the paper's but for what `differences` names. What is not the paper's was chosen on held-out
images; but that of VOGN on AlexNet without augmentation, LeNet-5 and ResNet-18 was sought after others' scores on the test part
had been seen, and on AlexNet VOGN went back to the paper's when what held-out images preferred was no better on the test part.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plausible as pl

from ..core.method import Method
from ..core.refresh import refresh
from ..core.schedules import Constant, Step
from ..datasets import Dataset
from .crop_and_flip import crop_and_flip
from .snapshots import Snapshots
from .study import Column, Outcome, Row, Study
from .vogn_cifar10_differences import DIFFERENCES
from .vogn_cifar10_findings import findings
from .vogn_cifar10_pictures import PICTURES
from .vogn_cifar10_published import PUBLISHED

TRAIN_IMAGES = 10_000  # of the training part, on which accuracy is measured without augmentation
HISTOGRAM = 40  # bins of the entropy
# By row or method, where held-out images speak against the network's setting.
CHOSEN: Mapping[str, Mapping[str, Any]] = {
    "noisy-kfac": {"precision": 500.0},
    "lenet5-vogn": {"rate": 1e-3, "falls": (15,)},
    "alexnet-plain-vogn": {"precision": 1000.0, "rate": 1.5e-4, "falls": (22, 27, 32)},
    "resnet18-vogn": {"rate": 1e-3},
}
RATES = {"adam": 1e-3, "mc-dropout": 1e-3, "vogn": 1e-4, "vogn-parts": 1e-4, "ogn": 1e-4, "ivon": 0.1}
BY_DECAY = ("adam", "kfac", "swag", "mc-dropout")  # methods whose prior is Adam's weight decay
BY_FACTOR = ("vogn", "vogn-parts")  # methods that have a ρ of their own
TRAINING_IMAGES = 50_000
DAMPING = 1e-3  # the paper's γ
CURVATURE_DECAY = 1e-3  # the paper's 1 − β₂
LOOK_EVERY = 100  # steps from one look of K-FAC at the curvature to the next
LOOKS_OF_KFAC = 7  # at the test images, and half as many as others have at most: answers with wide factors take seconds


@dataclass(frozen=True)
class Setting:
    """How a network is trained.

    Attributes:
        make: The network.
        epochs: Passes over the data.
        batch_size: Examples a step.
        precision: δ, of the natural-gradient methods' prior.
        decay: Adam's weight decay, which is a prior precision of this times N.
        warm_up: τ's first value, and over how many steps it rises to 1; None where it is 1 throughout.
        falls: Epochs at which the rate falls to a tenth.
        dropout: MC dropout's rate.
        samples: Draws of a prediction.
        augment: Whether images are shifted and mirrored.
        factor: VOGN's ρ, which N is multiplied by.
        looks: How often the test images are looked at in between.
        seeds: Trainings.
        arithmetic: Of mixed precision while training, None for float32.
        estimator: Of Bayes by backprop; "weights" has half the convolutions of "local".
    """

    make: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    precision: float
    decay: float
    warm_up: tuple[float, int] | None
    falls: tuple[int, ...]
    dropout: float
    samples: int = 10
    augment: bool = True
    factor: float = 10.0
    looks: int = 23
    seeds: int = 3
    arithmetic: str | None = None
    estimator: str = "local"


ALEXNET = Setting(pl.networks.AlexNet, 161, 256, 0.5, 1e-4, (0.5, 1954), (80, 120), 0.5)
SETTINGS = {
    "lenet5": Setting(
        functools.partial(pl.networks.LeNet5, channels=3, size=32), 210, 128, 100.0, 1e-2, (0.1, 11_719), (), 0.1,
        augment=False, factor=1.0, looks=21,
    ),
    "alexnet-plain": replace(ALEXNET, augment=False),
    "alexnet": ALEXNET,
    "resnet18": Setting(
        functools.partial(pl.networks.ResNet18, zero_init_last=True), 161, 256, 50.0, 5e-4, None, (80, 120), 0.3,
        samples=20, looks=8, seeds=1, arithmetic="bf16", estimator="weights",
    ),
}  # fmt: skip
# "vogn-parts" is VOGN whose batches have parts with draws of their own, as the authors' processes do.
METHODS = ("adam", "vogn", "vogn-parts", "ogn", "ivon", "kfac", "noisy-kfac", "swag", "bbb", "mc-dropout")


@dataclass(frozen=True, kw_only=True)
class CIFARRow(Row):
    """One method on one network.

    Attributes:
        network: A key of SETTINGS.
        method: One of METHODS.
        precision: Of the prior.
        rate: Of learning, None for the method's own.
        factor: ρ, which N is multiplied by.
        damping: VOGN's γ and OGN's.
        curvature_decay: 1 − β₂ of theirs, as their algorithm reads: how much of s one step leaves.
        falls: Epochs at which the rate falls to a tenth, of the methods that have it from the row.
        draws: Of the weights a step that an example is seen under, for methods that draw.
        parts: Of a batch, which have draws of their own.
        seeds: Trainings.
        looks: How often the test images are looked at in between.
        estimator: Of Bayes by backprop; "weights" has half the convolutions of "local".
        arithmetic: Of mixed precision while training, None for float32; products with Kronecker factors are rounded then, too.
        limit: Examples of each part, None for all.
    """

    network: str
    method: str
    precision: float
    rate: float | None = None
    factor: float = 1.0
    damping: float = DAMPING
    curvature_decay: float = CURVATURE_DECAY
    falls: tuple[int, ...] = ()
    draws: int = 1
    parts: int = 1
    seeds: int = 3
    looks: int = 21
    estimator: str = "local"
    arithmetic: str | None = None
    limit: int | None = None


def falling(falls: Sequence[int], epochs: int) -> Callable[[Tensor], Tensor]:
    """A schedule that falls to a tenth at these epochs of so many."""
    return Step(milestones=tuple(at / epochs for at in falls), factor=0.1) if falls else Constant()


def method_for(row: CIFARRow) -> Method:
    """The row's method in the library's words."""
    own, schedule = SETTINGS[row.network], falling(row.falls, row.epochs)
    online: dict[str, Any] = {
        "learning_rate": row.rate, "momentum": 0.9, "curvature_decay": row.curvature_decay,
        "damping": row.damping, "schedule": schedule,
    }  # fmt: skip
    if row.method in BY_FACTOR:
        start, steps = own.warm_up or (None, 0)
        return pl.VOGN(
            **online,
            num_samples=row.draws,
            num_parts=row.parts,
            augmentation_factor=row.factor,
            tempering_start=start,
            tempering_warmup=steps,
        )
    if row.method == "noisy-kfac":
        return pl.NoisyKFAC(num_samples=row.draws, update_every=LOOK_EVERY)
    if row.method == "ivon":
        own_schedule: dict[str, Any] = {"schedule": schedule} if row.falls else {}
        return pl.IVON(learning_rate=row.rate, num_samples=row.draws, **own_schedule)
    if row.method in ("adam", "mc-dropout"):
        assert row.rate is not None
        adam = pl.MAP(learning_rate=row.rate, schedule=schedule)
        return adam if row.method == "adam" else pl.MCDropout(rate=own.dropout, where="convolution", base=adam)
    methods: dict[str, Callable[[], Method]] = {
        "ogn": lambda: pl.OGN(**online),
        "kfac": lambda: pl.KFAC(update_every=LOOK_EVERY),
        "swag": lambda: pl.SWAG(),
        "bbb": lambda: pl.BayesByBackprop(num_samples=row.draws, estimator=row.estimator),
    }
    return methods[row.method]()


def model_for(row: CIFARRow, network: nn.Module) -> pl.BayesianModel:
    """The row's model; VOGN counts images ρ times itself, for another method a temperature does, which δ is not to feel."""
    factor = 1.0 if row.method in BY_FACTOR else row.factor
    prior = normal_but_on_norms(network, row.precision / factor)
    return pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=prior, temperature=1 / factor)


def normal_but_on_norms(network: nn.Module, precision: float) -> Any:
    """A normal prior of this precision, and none on batch norms."""
    norms = {f"{name}.*": pl.priors.Flat() for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    normal = pl.priors.Normal(scale=precision**-0.5)
    return {**norms, "*": normal} if norms else normal


@functools.lru_cache(maxsize=1)
def load(limit: int | None, root: Path | None) -> tuple[Dataset, Tensor]:
    """CIFAR-10, and images of house numbers, on the same scale."""
    data = pl.datasets.cifar10(root, normalised=True, limit=limit)
    assert data.input_mean is not None and data.input_scale is not None  # it is normalised
    return data, (pl.datasets.svhn(root, limit=limit).x_test - data.input_mean) / data.input_scale


def run_seed(row: CIFARRow, root: Path | None, seed: int) -> Outcome:
    """One training, judged at moments of it and at its end."""
    data, strange = load(row.limit, root)
    begun = time.perf_counter()
    moments = trained(row, data, seed)
    seconds = (time.perf_counter() - begun) / row.epochs
    curve = [accuracy_on(at, row, data.test) for at in moments]
    scores, entropies = _scored(moments[-1], row, data, strange)
    epochs = [row.epochs * (k + 1) / len(curve) for k in range(len(curve))]
    details = {"entropies": entropies, "curve": {"epoch": epochs, "accuracy": [curve]}}
    return Outcome.of_seed(seed, {**scores, "seconds": seconds}, details=details)


def join_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves of all seeds, and the first one's entropies."""
    curves = [own["curve"]["accuracy"][0] for own in details]
    return {**details[0], "curve": {"epoch": details[0]["curve"]["epoch"], "accuracy": curves}}


def trained(row: CIFARRow, data: Dataset, seed: int) -> list[pl.Posterior]:
    """The answers along the run, the last at its end; of SWAG, which takes snapshots of its own, the last alone."""
    own = SETTINGS[row.network]
    network = own.make()
    count = len(data.x_train)
    model, method = model_for(row, network), method_for(row)
    optimiser = row.method in ("ogn", "kfac")  # which draws nothing: the curvature is for its steps
    watched = method if row.method == "swag" else Snapshots(base=method, count=row.looks, at_mean=optimiser)
    with rounded_products() if row.arithmetic and "kfac" in row.method else nullcontext():
        found = pl.fit(
            model, data.train, watched, epochs=row.epochs, batch_size=min(own.batch_size, count // 2), init="reset",
            seed=seed, augment=crop_and_flip if own.augment else None, precision=row.arithmetic,
        )  # fmt: skip
    moments = found.components if isinstance(watched, Snapshots) else [found]
    for at in moments:
        refresh(at, data.train, own.samples, 0)
    return moments


@contextmanager
def rounded_products() -> Iterator[None]:
    """Products of float32 matrices by a GPU's tensor cores, with ten bits of each number.

    Inside, torch refuses the older names of this switch: `torch.get_float32_matmul_precision()`, `allow_tf32`.
    """
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def predicted(posterior: pl.Posterior, row: CIFARRow, x: Tensor) -> Any:
    """The prediction, with as many draws as the row's network has."""
    return posterior.predict(x.to(posterior.device), num_samples=SETTINGS[row.network].samples)


def accuracy_on(posterior: pl.Posterior, row: CIFARRow, part: tuple[Tensor, Tensor]) -> float:
    """In percent."""
    probs = predicted(posterior, row, part[0]).probs
    return 100 * float(pl.metrics.accuracy(probs, part[1].to(probs.device)))


def _scored(
    posterior: pl.Posterior, row: CIFARRow, data: Dataset, strange: Tensor
) -> tuple[dict[str, float], dict[str, Any]]:
    inside, outside = (predicted(posterior, row, x) for x in (data.x_test, strange))
    probs, y = inside.probs, data.y_test.to(inside.probs.device)
    confidence, guess = probs.max(1)
    bins = torch.linspace(0, 2.3026, HISTOGRAM + 1)
    shares = lambda p: (torch.histc(p.total.float().cpu(), HISTOGRAM, 0, 2.3026) / len(p.total)).tolist()  # noqa: E731
    scores = {
        "accuracy": 100 * pl.metrics.accuracy(probs, y),
        "nll": -inside.log_prob(y).mean(),  # from logits: a sure network's probabilities round to zero
        "ece": pl.metrics.ece(probs, y),
        "auroc": pl.metrics.auroc_error(confidence, guess == y),
        "svhn": pl.metrics.auroc_ood(inside.total, outside.total),
        "fpr95": pl.metrics.fpr95(inside.total, outside.total),
    }
    train = accuracy_on(posterior, row, (data.x_train[:TRAIN_IMAGES], data.y_train[:TRAIN_IMAGES]))
    entropies = {"edges": bins.tolist(), "inside": shares(inside), "outside": shares(outside)}
    return {"train": train, **{name: float(value) for name, value in scores.items()}}, entropies


def toy(row: CIFARRow) -> CIFARRow:
    """A few images, one pass, one seed; passes enough for the snapshots that SWAG takes."""
    epochs = 4 if row.method == "swag" else 1
    return replace(row, full=False, epochs=epochs, seeds=1, looks=1, arithmetic=None, limit=64)


def _row(network: str, method: str) -> CIFARRow:
    """A method on a network, with the network's settings but for what was chosen."""
    own, name = SETTINGS[network], f"{network}-{method}"
    chosen = {**CHOSEN.get(method, {}), **CHOSEN.get(name, {})}
    precision = own.decay * TRAINING_IMAGES if method in BY_DECAY else own.precision
    factor = own.factor if method in BY_FACTOR else 1.0
    return CIFARRow(
        name=name, network=network, method=method, rate=chosen.get("rate", RATES.get(method)),
        precision=chosen.get("precision", precision), factor=chosen.get("factor", factor),
        damping=chosen.get("damping", DAMPING), curvature_decay=chosen.get("curvature_decay", CURVATURE_DECAY),
        falls=chosen.get("falls", own.falls) if method in RATES else (),
        looks=min(own.looks // 2, LOOKS_OF_KFAC) if "kfac" in method else own.looks,
        seeds=1 if method == "vogn-parts" else own.seeds,
        epochs=800 if method == "bbb" and network == "lenet5" else own.epochs,
        draws={"vogn": 1 if network == "resnet18" else 4, "vogn-parts": 3}.get(method, 1),
        parts=8 if method == "vogn-parts" else 1,
        estimator=own.estimator if method == "bbb" else "local", arithmetic=own.arithmetic,
    )  # fmt: skip


def _rows() -> list[CIFARRow]:
    parts = lambda network, method: method != "vogn-parts" or network == "alexnet"  # noqa: E731
    return [_row(network, method) for network in SETTINGS for method in METHODS if parts(network, method)]


STUDY = Study(
    name="vogn-cifar10",
    title="VOGN on CIFAR-10",
    paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019), Practical deep learning with Bayesian principles",
    about=(
        "LeNet-5, AlexNet (without and with shifted and mirrored images) and ResNet-18 on CIFAR-10, trained by each method for "
        "the published number of epochs. `adam` is `pl.MAP`, `bbb` Bayes by backprop. Predictions average 10 draws (ResNet-18: "
        "20). Strangers are the test images of SVHN, told by the entropy of the prediction."
    ),
    columns={
        "accuracy": Column(
            heading="accuracy %", form=".2f", better="high", meaning="share of right labels on test images"
        ),
        "train": Column(
            heading="train %", form=".2f", better="neither", meaning=f"the same on {TRAIN_IMAGES:,} training images"
        ),
        "nll": Column(heading="NLL", form=".3f", better="low", meaning="negative log likelihood"),
        "ece": Column(heading="ECE", form=".3f", better="low", meaning="expected calibration error, 15 bins"),
        "auroc": Column(
            heading="AUROC", form=".3f", better="high", meaning="confidence telling right from wrong predictions"
        ),
        "svhn": Column(heading="SVHN AUROC", form=".3f", better="high", meaning="entropy telling SVHN from CIFAR-10"),
        "fpr95": Column(
            heading="SVHN FPR95", form=".3f", better="low", meaning="strangers taken for CIFAR-10 where 95 % of it are"
        ),
        "seconds": Column(heading="s/epoch", form=".2f", better="neither", meaning="seconds of training for an epoch"),
    },
    rows=_rows(),
    published={**PUBLISHED, "alexnet-vogn-parts": PUBLISHED["alexnet-vogn"]},
    differences=DIFFERENCES,
    repetition="seed",
    run_seed=run_seed,
    join_details=join_details,
    toy=toy,
    pictures=PICTURES,
    findings=findings,
)
