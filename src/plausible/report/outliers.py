"""Inputs unlike anything that was trained on, to see whether a method notices."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .. import datasets
from ..datasets import Dataset
from .plane import is_plane, plotted_box

Outliers = tuple[Tensor | None, str]  # None where nobody can say; what they are, in words

KNOWN_DIGITS = 8  # digits are trained on 0 to 7; 8 and 9 are what the network has never seen
FAR = 1.0  # from all data: what counts as outside in the plotted box


def known_digits() -> Dataset:
    """The digits without those that are kept as outliers."""
    data = datasets.digits()
    train, test = data.y_train < KNOWN_DIGITS, data.y_test < KNOWN_DIGITS
    return replace(
        data, x_train=data.x_train[train], y_train=data.y_train[train], x_test=data.x_test[test],
        y_test=data.y_test[test], classes=data.classes[:KNOWN_DIGITS],
    )  # fmt: skip


def outliers_of(data: Dataset) -> Outliers:
    """What is known of the embedded sets, and of any classes in a plane."""
    if data.name == "digits" and len(data.classes) == KNOWN_DIGITS:
        every = datasets.digits()
        x, y = torch.cat([every.x_train, every.x_test]), torch.cat([every.y_train, every.y_test])
        return x[y >= KNOWN_DIGITS], "trained on 0 to 7, against 8 and 9"
    if is_plane(data):
        points, _ = plotted_box(data)
        known = torch.cat([data.x_train, data.x_test])
        far = torch.cdist(points, known).amin(1) > FAR
        return points[far], "test points against places farther than 1 from all data"
    return None, ""
