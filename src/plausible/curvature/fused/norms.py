"""Sums of per-example gradients per channel and of their squares: of a batch norm's weight and bias, or of a bias alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...weights.algebra import under_vmap
from ...weights.gpu_kernels import kernels_run_on, launch
from ..layouts import Layout
from .convolution import DTYPES, LARGEST

ROWS = 4096  # numbers that a program reads at a time


def usable(image: Tensor, slope: Tensor, layout: Layout) -> bool:
    """Whether the kernels can do a layer with this input, or output, (N, channels, places...) and output gradient."""
    return (
        kernels_run_on(image.device)
        and image.dtype in DTYPES
        and slope.dtype in DTYPES
        and image.numel() <= LARGEST
        and layout == Layout()  # examples come first and have an axis to themselves
        and not under_vmap()
    )


def moments(image: Tensor, mean: Tensor, inverse: Tensor, slope: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Two of (2, channels): Σ gᵢ and Σ fᵢ gᵢ² of the weight, and of the bias.

    Args:
        image: (N, channels, places...), the input.
        mean: Of every channel.
        inverse: Of every channel's deviation.
        slope: The gradient of the output.
        factors: (N,), the fᵢ.
    """
    if not _has_channels_last(image) or not _has_channels_last(slope):
        image, slope = image.contiguous(), slope.contiguous()
    bias, weight = _summed(slope, factors, (image, mean.float(), inverse.float()))
    return weight, bias


def bias_moments(slope: Tensor, factors: Tensor) -> Tensor:
    """(2, channels) of a bias that is added to every place of a channel."""
    return _summed(slope if _has_channels_last(slope) else slope.contiguous(), factors, None)[0]


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _summed(slope: Tensor, factors: Tensor, norm: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
    """(1 or 2, 2, channels): of the bias, and of the weight of a norm."""
    from . import norm_kernels as kernels  # needs Triton

    examples, channels = slope.shape[:2]
    rows, positions, planes = examples * channels, math.prod(slope.shape[2:]), 1 if norm is None else 2
    each = torch.empty((planes, rows), device=slope.device, dtype=torch.float32)
    beside = _has_channels_last(slope) and not slope.is_contiguous()  # channels are neighbours, or positions are
    block = min(64 if beside else 1024, 1 << (positions - 1).bit_length())
    high = ROWS // block
    strides = (channels * positions, 1, channels) if beside else (channels * positions, positions, 1)
    image, mean, inverse = norm or (slope, slope, slope)
    launch(
        kernels.position_sums, math.ceil(rows / high), image, slope, mean, inverse, each, rows, channels, positions,
        *strides, BLOCK_R=high, BLOCK_P=block, BOTH=norm is not None,
    )  # fmt: skip
    found = torch.empty((planes, 2, channels), device=slope.device, dtype=torch.float32)
    launch(
        kernels.example_sums, (math.ceil(channels / 16), planes), each, factors.float(), found, examples, channels,
        BLOCK_N=64, BLOCK_C=16,
    )  # fmt: skip
    return found
