"""The Triton kernel of `device_draws`; imported where there is a GPU only."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit(do_not_specialize=["key_first", "key_second", "step", "call", "half", "n"])
def pairs(key_first, key_second, step, call, half, n, out, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    """Threefry-2x32 of the counters (j, call), j below half: the first number of a pair goes to j, the second to half + j."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k0 = tl.load(key_first).to(tl.uint32, bitcast=True) + tl.load(step).to(tl.int32).to(tl.uint32, bitcast=True)
    k1 = tl.load(key_second).to(tl.uint32, bitcast=True)
    first, second = _threefry(j.to(tl.uint32), tl.zeros((BLOCK,), dtype=tl.uint32) + call.to(tl.uint32), k0, k1)
    # Uniform in [−1/2, 1/2] and never 0; see `rng._unsigned` for why the sign is taken off last.
    left = (first.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * 2.0**-32
    right = (second.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * 2.0**-32
    left = tl.minimum(left + (left < 0).to(tl.float32), 1.0 - 2.0**-24)
    if NORMAL:
        radius = libdevice.sqrt(-2.0 * libdevice.log(left))
        angle = right * 6.283185307179586
        left, right = libdevice.cos(angle) * radius, libdevice.sin(angle) * radius
    else:
        right = tl.minimum(right + (right < 0).to(tl.float32), 1.0 - 2.0**-24)
    tl.store(out + j, left, mask=j < half)
    tl.store(out + half + j, right, mask=(j < half) & (half + j < n))


@triton.jit(do_not_specialize=["key_first", "key_second", "step", "call"])
def words(key_first, key_second, step, call, out, BLOCK: tl.constexpr):
    """Threefry-2x32 of the counter (0, call), as two words; of a block of counters one is kept."""
    j = tl.arange(0, BLOCK)
    k0 = tl.load(key_first).to(tl.uint32, bitcast=True) + tl.load(step).to(tl.int32).to(tl.uint32, bitcast=True)
    k1 = tl.load(key_second).to(tl.uint32, bitcast=True)
    first, second = _threefry(j.to(tl.uint32), tl.zeros((BLOCK,), dtype=tl.uint32) + call.to(tl.uint32), k0, k1)
    tl.store(out + j, first.to(tl.int32, bitcast=True), mask=j < 1)
    tl.store(out + 1 + j, second.to(tl.int32, bitcast=True), mask=j < 1)


@triton.jit
def _threefry(first, second, k0, k1):
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    first = first + k0
    second = second + k1
    for group in tl.static_range(5):
        if group % 2 == 0:
            first, second = _four_rounds(first, second, 13, 15, 26, 6)
        else:
            first, second = _four_rounds(first, second, 17, 29, 16, 24)
        first = first + (k1 if group % 3 == 0 else (k2 if group % 3 == 1 else k0))
        second = second + (k2 if group % 3 == 0 else (k0 if group % 3 == 1 else k1)) + (group + 1)
    return first, second


@triton.jit
def _four_rounds(first, second, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    first, second = _round(first, second, A)
    first, second = _round(first, second, B)
    first, second = _round(first, second, C)
    return _round(first, second, D)


@triton.jit
def _round(first, second, DISTANCE: tl.constexpr):
    first = first + second
    return first, ((second << DISTANCE) | (second >> (32 - DISTANCE))) ^ first
