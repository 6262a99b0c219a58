"""Sets of images that lie in a folder: a LeNet-5, and another set as what it has never seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import datasets
from ..datasets import Dataset
from .outliers import Outliers
from .settings import Convolutional, Setting

EXAMPLES = 10_000  # to train on, unless told: on one core a method then takes a minute or so, and not an hour
EPOCHS, SEEDS = 10, 2
JUDGED = 5  # a fifth as many test images are judged: 64 draws of the weights for each cost as much as training does


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """One set.

    Attributes:
        read: Reads it from a folder of data sets.
        strangers: Reads what it is told from.
        strangers_are: Their name.
    """

    read: Callable[..., Dataset]
    strangers: Callable[..., Dataset]
    strangers_are: str


def _cifar10(root: str | Path | None, limit: int) -> Dataset:
    return datasets.cifar10(root, normalised=True, limit=limit)


IMAGES = {
    "mnist": Pictures(read=datasets.mnist, strangers=datasets.fashion_mnist, strangers_are="fashion-mnist"),
    "fashion-mnist": Pictures(read=datasets.fashion_mnist, strangers=datasets.mnist, strangers_are="mnist"),
    "kmnist": Pictures(read=datasets.kmnist, strangers=datasets.notmnist, strangers_are="notmnist"),
    "cifar10": Pictures(read=_cifar10, strangers=datasets.svhn, strangers_are="svhn"),
}


def image_setting(name: str, examples: int | None = None, root: str | Path | None = None) -> Setting:
    """What to train on one of `IMAGES`, read now: the first `examples` of its training part, judged on a fifth as many.

    Args:
        name: One of `IMAGES`.
        examples: How many to train on; None takes `EXAMPLES`.
        root: The folder of data sets; PLAUSIBLE_DATA if not given.
    """
    wanted = EXAMPLES if examples is None else examples
    if wanted < 1:
        raise ValueError(f"examples must be at least 1, got {examples}")
    chosen = IMAGES[name]
    try:
        data = chosen.read(root, limit=max(wanted, EXAMPLES))  # a limit holds for both parts
    except FileNotFoundError as error:  # which names the reader's argument
        raise FileNotFoundError(str(error).replace("root=", "data_dir= (--data-dir)")) from None
    remarks = []
    if not len(data.x_train):
        data = _split(data)
        remarks.append(
            f"{name}: only the published test part is here; four fifths of it were trained on and the rest judged"
        )
    judged = max(1, wanted // JUDGED)
    data = replace(
        data, x_train=data.x_train[:wanted], y_train=data.y_train[:wanted], x_test=data.x_test[:judged],
        y_test=data.y_test[:judged],
    )  # fmt: skip
    outliers: Outliers = (None, "")
    try:
        outliers = _strangers(chosen, data, root)
    except FileNotFoundError:
        remarks.append(f"{name}: no OOD column, since {chosen.strangers_are} is not in the folder of data sets")
    return Setting(
        load=lambda: data, network=Convolutional(), outliers=lambda _: outliers, epochs=EPOCHS, seeds=SEEDS,
        partial=len(data.x_train) == wanted, remarks=tuple(remarks),
    )  # fmt: skip


def _strangers(chosen: Pictures, data: Dataset, root: str | Path | None) -> Outliers:
    x = chosen.strangers(root, limit=len(data.x_test)).x_test  # as many as are judged
    if data.input_mean is not None and data.input_scale is not None:  # on the scale that the network knows
        x = (x - data.input_mean) / data.input_scale
    return x, f"test images against {len(x):,} of {chosen.strangers_are}"


def _split(data: Dataset) -> Dataset:
    x, y = data.test
    judged = (torch.arange(len(x)) % JUDGED) == 0
    return replace(data, x_train=x[~judged], y_train=y[~judged], x_test=x[judged], y_test=y[judged])
