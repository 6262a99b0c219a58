"""The usual augmentation of small photographs: shift by up to four pixels, and mirror half of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 4


def crop_and_flip(images: Tensor) -> Tensor:
    """A random crop of every padded image (N, C, H, W), half of them mirrored; draws from torch's generator."""
    count, channels, height, width = images.shape
    padded = F.pad(images, [SHIFT] * 4)
    down, across = (torch.randint(0, 2 * SHIFT + 1, (count, 1), device=images.device) for _ in range(2))
    rows = down + torch.arange(height, device=images.device)
    columns = across + torch.arange(width, device=images.device)
    mirrored = torch.rand(count, 1, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    example = torch.arange(count, device=images.device)
    return padded[example[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
