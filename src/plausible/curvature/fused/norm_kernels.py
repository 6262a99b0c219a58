"""Triton kernels of the per-example gradients of a batch norm, or of a bias per channel; imported where there is a GPU only.

An example's gradients are aᵢ = Σ δ (x − mean) / deviation and bᵢ = Σ δ over its positions, one each per channel.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def position_sums(
    image, slope, mean, inverse, out, rows, channels, positions, far_n, far_c, far_p,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    """(2, rows): b and a of every row, an (example, channel) of tensors with these strides; (1, rows) without BOTH."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = row < rows
    if BOTH:
        centre = tl.load(mean + row % channels, mask=inside, other=0.0)
    place = ((row // channels).to(tl.int64) * far_n + (row % channels) * far_c)[:, None]
    first = tl.zeros((BLOCK_R, BLOCK_P), dtype=tl.float32)
    second = tl.zeros((BLOCK_R, BLOCK_P), dtype=tl.float32)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        mask = inside[:, None] & (p < positions)[None, :]
        delta = tl.load(slope + place + p[None, :] * far_p, mask=mask, other=0.0).to(tl.float32)
        first += delta
        if BOTH:
            x = tl.load(image + place + p[None, :] * far_p, mask=mask, other=0.0).to(tl.float32)
            second += delta * (x - centre[:, None])
    tl.store(out + row, tl.sum(first, 1), mask=inside)
    if BOTH:
        scale = tl.load(inverse + row % channels, mask=inside, other=0.0)
        tl.store(out + rows + row, tl.sum(second, 1) * scale, mask=inside)


@triton.jit(do_not_specialize=["examples"])
def example_sums(each, factors, out, examples, channels, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """(planes, examples, channels) → (planes, 2, channels): Σ vᵢ and Σ fᵢ vᵢ² of each."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    each += tl.program_id(1) * examples * channels
    sums = tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32)
    for start in range(0, examples, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        factor = tl.load(factors + n, mask=n < examples, other=0.0)
        mask = (n < examples)[:, None] & (c < channels)[None, :]
        value = tl.load(each + n[:, None] * channels + c[None, :], mask=mask, other=0.0)
        sums += value
        squares += value * (value * factor[:, None])
    out += tl.program_id(1) * 2 * channels + c
    tl.store(out, tl.sum(sums, 0), mask=c < channels)
    tl.store(out + channels, tl.sum(squares, 0), mask=c < channels)
