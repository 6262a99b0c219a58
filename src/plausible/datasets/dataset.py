"""A data set with its fixed split, and the scaling that was learnt from its training part."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Task = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Dataset:
    """Inputs and targets for training and testing.

    Inputs are float32. Targets are int64 class numbers of shape (N,), or (N, H, W) where each pixel has one, or float32
    values of shape (N, 1).

    Attributes:
        name: the data set's name.
        task: what kind of target it has.
        classes: the name of each class; empty for regression.
        feature_names: the name of each input column; empty for images.
        standardised: whether input columns, or image channels, have mean 0 and deviation 1 over the training part.
        input_mean: what was subtracted from each input column or channel, if standardised.
        input_scale: what each was then divided by, if standardised.
        target_mean: what was subtracted from regression targets.
        target_scale: what they were then divided by.
    """

    name: str
    task: Task
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    standardised: bool = False
    input_mean: Tensor | None = None
    input_scale: Tensor | None = None
    target_mean: float = 0.0
    target_scale: float = 1.0

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets to fit."""
        return self.x_train, self.y_train

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets that no fit has seen."""
        return self.x_test, self.y_test

    def __repr__(self) -> str:
        inputs = "x".join(str(size) for size in self.x_train.shape[1:])
        return (
            f"Dataset({self.name!r}, {self.task}, {len(self.x_train)} + {len(self.x_test)} examples of {inputs} inputs)"
        )


def standardised_table(
    name: str,
    task: Task,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    classes: tuple[str, ...] = (),
    feature_names: tuple[str, ...] = (),
) -> Dataset:
    """A `Dataset` of a table, scaled by what the training part alone says: anything else would leak the test part."""
    x_train, y_train = train
    x_test, y_test = test
    mean, scale = _mean_and_scale(x_train)
    target_mean, target_scale = 0.0, 1.0
    if task == "regression":
        y_mean, y_scale = _mean_and_scale(y_train.reshape(-1, 1))
        target_mean, target_scale = y_mean.item(), y_scale.item()

    def targets(y: np.ndarray) -> Tensor:
        if task == "classification":
            return torch.tensor(y, dtype=torch.int64)
        return torch.tensor((y.reshape(-1, 1) - target_mean) / target_scale, dtype=torch.float32)

    return Dataset(
        name=name,
        task=task,
        x_train=torch.tensor((x_train - mean) / scale, dtype=torch.float32),
        y_train=targets(y_train),
        x_test=torch.tensor((x_test - mean) / scale, dtype=torch.float32),
        y_test=targets(y_test),
        classes=classes,
        feature_names=feature_names,
        standardised=True,
        input_mean=torch.tensor(mean, dtype=torch.float32),
        input_scale=torch.tensor(scale, dtype=torch.float32),
        target_mean=target_mean,
        target_scale=target_scale,
    )


def _mean_and_scale(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = columns.mean(0)
    scale = columns.std(0)
    # A column that never changes has no scale of its own; what rounding leaves of it must not be blown up.
    constant = scale <= 1e-12 * np.maximum(1.0, np.abs(mean))
    return mean, np.where(constant, 1.0, scale)
