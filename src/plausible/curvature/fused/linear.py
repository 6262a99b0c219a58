"""Sums of a small linear layer's per-example gradients and of their squares: one kernel in place of ten."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...weights.algebra import under_vmap
from ...weights.gpu_kernels import kernels_run_on, launch
from ..layouts import Layout
from .convolution import DTYPES

LARGEST = 2**19  # weights, beyond which a library's products are worth their launches
BLOCK, EXAMPLES = 16, 32  # of rows and columns that a program owns, and what it takes at a time


def usable(given: Tensor, slope: Tensor, layout: Layout) -> bool:
    """Whether the kernel can do a layer: one vector an example, one column."""
    return (
        kernels_run_on(given.device)
        and given.dim() == 2
        and slope.dim() == 3
        and slope.shape[0] == 1
        and given.dtype in DTYPES
        and slope.dtype in DTYPES
        and layout == Layout()
        and given.shape[1] * slope.shape[2] <= LARGEST
        and not under_vmap()
    )


def moments(given: Tensor, slope: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """(2, outs, ins) and (2, outs): Σ gᵢ and Σ fᵢ gᵢ² of the weight, and of the bias, in float32.

    Args:
        given: (N, ins).
        slope: (1, N, outs).
        factors: (N,), the fᵢ.
    """
    from .linear_kernels import layer_sums as kernel  # needs Triton

    matmul: Any = torch.backends.cuda.matmul
    slope = slope[0]
    (examples, ins), outs = given.shape, slope.shape[1]
    weight = torch.empty((2, outs, ins), device=given.device, dtype=torch.float32)
    bias = torch.empty((2, outs), device=given.device, dtype=torch.float32)
    launch(
        kernel, (math.ceil(outs / BLOCK), math.ceil(ins / BLOCK)), given, slope, factors.float(), weight, bias,
        examples, outs, ins, *given.stride(), *slope.stride(),
        BLOCK=BLOCK, BLOCK_N=EXAMPLES, PRECISION="tf32" if matmul.fp32_precision == "tf32" else "ieee",
    )  # fmt: skip
    return weight, bias
