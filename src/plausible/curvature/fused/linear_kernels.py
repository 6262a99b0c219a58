"""The Triton kernel of a small linear layer's per-example gradients; imported where there is a GPU only."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["examples"])
def layer_sums(
    given, slope, factors, weight, bias, examples, outs, ins, given_n, given_i, slope_n, slope_o,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of y = W x + b: Σ δᵢ xᵢᵀ and Σ fᵢ δᵢ² (xᵢ²)ᵀ in `weight` (2, outs, ins), Σ δᵢ and Σ fᵢ δᵢ² in `bias` (2, outs)."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    squares = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    bias_sums = tl.zeros((BLOCK,), dtype=tl.float32)
    bias_squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, examples, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        there = n < examples
        delta = tl.load(
            slope + o[:, None] * slope_o + n[None, :] * slope_n, mask=(o < outs)[:, None] & there[None, :], other=0.0
        ).to(tl.float32)
        x = tl.load(
            given + n[:, None] * given_n + i[None, :] * given_i, mask=there[:, None] & (i < ins)[None, :], other=0.0
        ).to(tl.float32)
        weighted = delta * delta * tl.load(factors + n, mask=there, other=0.0)[None, :]
        sums = tl.dot(delta, x, sums, input_precision=PRECISION)
        squares = tl.dot(weighted, x * x, squares, input_precision=PRECISION)
        bias_sums += tl.sum(delta, 1)
        bias_squares += tl.sum(weighted, 1)
    place, inside = o[:, None] * ins + i[None, :], (o < outs)[:, None] & (i < ins)[None, :]
    tl.store(weight + place, sums, mask=inside)
    tl.store(weight + outs * ins + place, squares, mask=inside)
    first = (o < outs) & (tl.program_id(1) == 0)
    tl.store(bias + o, bias_sums, mask=first)
    tl.store(bias + outs + o, bias_squares, mask=first)
