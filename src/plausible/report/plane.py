"""Classes in a plane: when data are that, and the box around them that is drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from ..datasets import Dataset

MARGIN = 2.0  # of the plotted box around the data, in standardised units
GRID = 60  # points along a side of the plotted box


def is_plane(data: Dataset) -> bool:
    """Whether the data are classes in a plane, which can be drawn."""
    return data.task == "classification" and tuple(data.x_train.shape[1:]) == (2,)


def plotted_box(data: Dataset) -> tuple[Tensor, tuple[float, float, float, float]]:
    """The points of a grid around the data, row by row from the top, and the box (left, right, bottom, top)."""
    known = torch.cat([data.x_train, data.x_test])
    low, high = known.amin(0) - MARGIN, known.amax(0) + MARGIN
    across = torch.linspace(float(low[0]), float(high[0]), GRID)
    down = torch.linspace(float(high[1]), float(low[1]), GRID)
    y, x = torch.meshgrid(down, across, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1), (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
