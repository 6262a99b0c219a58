"""Dropout on a CPU by integers that are compared with the rate: torch's coins there cost more than the layers around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 17  # coins at a time, whose integers stay in the cache


def kept(shape: Sequence[int], rate: float) -> Tensor:
    """Booleans, false at that rate (a multiple of 2⁻³²), seeded by the next number of torch's generator."""
    words = np.random.SFC64(int(torch.randint(2**63 - 1, ())))
    lowest = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    count = math.prod(shape)
    coins = np.empty(count, np.bool_)
    for begin in range(0, count, BLOCK):
        part = coins[begin : begin + BLOCK]
        drawn = words.random_raw((part.size + 1) // 2).view(np.uint32)[: part.size]
        np.greater_equal(drawn, lowest, part)
    return torch.from_numpy(coins).view(tuple(shape))


def drop(x: Tensor, rate: float) -> Tensor:
    """x with every number zero at that rate, the rest scaled up."""
    mask = kept(x.shape, rate)
    once = x[:1] if x.dim() > 0 and x.stride(0) == 0 else x  # an axis that was expanded is scaled once
    return torch.where(mask, once / (1 - rate), 0.0)
