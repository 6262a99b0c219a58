"""Bytes and labels as the tensors of a `Dataset`."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plausible.datasets.dataset import Dataset

Part = tuple[Tensor, Tensor]


def image_part(pixels: np.ndarray, labels: np.ndarray, classes: int, source: Path) -> Part:
    """Inputs in [0, 1] and class numbers, from bytes (N, C, H, W) and labels (N,) or, for scenes, (N, H, W)."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ValueError(f"{source}: images must be bytes (N, C, H, W), got {pixels.dtype} {pixels.shape}")
    if labels.shape not in (pixels.shape[:1], pixels.shape[:1] + pixels.shape[2:]):
        raise ValueError(f"{source}: images {pixels.shape} and labels {labels.shape} do not go together")
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"{source}: labels must be from 0 to {classes - 1}, got {wrong}; fetch the file again")
    # One float copy and no other, since some of these sets are large.
    x = torch.empty(pixels.shape, dtype=torch.float32)
    x.numpy()[...] = pixels
    return x.div_(255), torch.from_numpy(labels.astype(np.int64))


def empty_part(channels: int, height: int, width: int) -> Part:
    """The training part of a set of which only the test part is at hand."""
    return torch.empty(0, channels, height, width), torch.empty(0, dtype=torch.int64)


def image_dataset(name: str, train: Part, test: Part, classes: tuple[str, ...]) -> Dataset:
    """A `Dataset` of images in [0, 1]."""
    return Dataset(
        name=name,
        task="classification",
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
        classes=classes,
    )
