"""Sums over very many examples that keep their digits."""

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """The same numbers in the widest floating point type of their device.

    A running float32 sum of ones stops at 2**24, fewer than the pixels of a hundred street scenes, and a float16 cannot
    even hold the count 65,536.
    """
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)  # Apple's GPUs have no float64


def share(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """The share of true entries; counted in integers, so exact up to the last division."""
    return (wide(flags.sum()) / flags.numel()).to(dtype)
