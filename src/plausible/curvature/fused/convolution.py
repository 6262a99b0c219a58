"""Sums of a convolution's per-example gradients and of their squares, by the kernels beside this file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...weights.algebra import under_vmap
from ...weights.gpu_kernels import kernels_run_on, launch
from ..layouts import Layout

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = 2**31 - 1  # offsets within an example and within a result are 32-bit numbers
PARTIAL = 128 * 1024**2  # bytes that the sums of runs of examples may take together
SMALL = {(8, 6), (8, 9), (12, 0), (12, 1)}  # capabilities whose shared memory has no room for three stages of float32
NEIGHBOURS = 16  # channels from which a tile stays within one tap
PAIRED = 16  # examples at a time of which pairs of positions are multiplied
FEW = 4  # positions up to which their pairs are fewer than what the tensor cores multiply at least


@dataclass(frozen=True)
class Tiling:
    """How a matrix of gradients is cut up.

    Attributes:
        outs: Output channels of a tile.
        columns: Columns (tap, input channel) of a tile.
        positions: How many are multiplied and added at a time; where there are FEW, of how many examples.
        warps: Of a program.
        stages: Loads under way.
        programs: How many to aim for, so that no processor stands still.
    """

    outs: int
    columns: int
    positions: int
    warps: int = 4
    stages: int = 3
    programs: int = 264


def usable(rule: Any, given: Tensor, slope: Tensor, layout: Layout) -> bool:
    """Whether the kernels can do a convolution; a fixed rule of shapes, dtypes and devices."""
    return (
        kernels_run_on(given.device)
        and given.dtype in DTYPES
        and slope.dtype in DTYPES
        and rule.groups == 1
        and len(rule.kernel) <= 2
        and layout.axis == 0
        and layout.order == "own"
        and math.prod(slope.shape[3:]) > 1  # one position alone is a product of squares
        and max(math.prod(given.shape[1:]), math.prod(slope.shape[2:]), rule.size) <= LARGEST
        and math.prod(given.shape[1:]) > 1
        and not under_vmap()
    )


def moments(
    rule: Any, given: Tensor, slope: Tensor, factors: Tensor | None = None, sums: bool = True,
    tiling: Tiling | None = None,
) -> Tensor:  # fmt: skip
    """(2, weight shape): Σ gᵢ and Σ fᵢ gᵢ² over columns and examples in float32; without `sums` (1, weight shape).

    Args:
        rule: A `Convolution` that is usable.
        given: (N, channels, places...), its input.
        slope: (R, N, outs, places...), gradients of its output.
        factors: (N,), the fᵢ; None are ones.
        sums: Whether the first is wanted.
        tiling: None takes the one for these shapes.
    """
    if len(rule.kernel) == 1:
        given, slope = given.unsqueeze(-2), slope.unsqueeze(-2)
    slope = slope.flatten(0, 1)
    # A convolution in mixed precision casts its input, so that is what its gradient is made of.
    given, pairs = given.to(slope.dtype), _in_pairs(given, slope)
    given, slope = _arranged(given, slope, pairs)
    partial = _sums_of_runs(rule, given, slope, factors, 2 if sums else 1, tiling, pairs)
    runs, planes, outs, taps, channels = partial.shape
    shape = (planes, outs, channels, *rule.kernel)
    if runs == 1 and taps == 1:
        return partial.view(shape)
    from . import convolution_kernels as kernels  # needs Triton

    found = torch.empty(shape, device=given.device, dtype=torch.float32)
    deep, high = min(64, 1 << (runs - 1).bit_length()), 1 << (taps - 1).bit_length()
    wide = max(1, min(4096 // (deep * high), 1 << (channels - 1).bit_length()))
    launch(
        kernels.added_up, (planes * outs, math.ceil(channels / wide)),
        partial, found, runs, planes * outs, channels, taps, BLOCK_R=deep, BLOCK_C=wide, BLOCK_T=high,
    )  # fmt: skip
    return found


def _sums_of_runs(
    rule: Any, given: Tensor, slope: Tensor, factors: Tensor | None, planes: int, tiling: Tiling | None, pairs: bool
) -> Tensor:
    """(runs, planes, outs, taps, channels) of examples (R N, outs, places...)."""
    from . import convolution_kernels as kernels  # needs Triton

    kernel, stride, dilation = (_two(v, 1) for v in (rule.kernel, rule.stride, rule.dilation))
    before = _two(tuple(pair[0] for pair in rule.padding), 0)
    (examples, outs, down, across), (images, channels, height, width) = slope.shape, given.shape
    positions, taps, apart = down * across, math.prod(kernel), channels >= NEIGHBOURS
    tiling = tiling or tiling_for(outs, channels, taps, positions, slope, pairs)
    blocks = taps * math.ceil(channels / tiling.columns) if apart else math.ceil(taps * channels / tiling.columns)
    tiles = math.ceil(outs / tiling.outs) * blocks
    most = PARTIAL // (4 * planes * outs * taps * channels)
    run = math.ceil(examples / max(1, min(examples, round(tiling.programs / tiles), most)))
    partial = torch.empty(
        (math.ceil(examples / run), planes, outs, taps, channels), device=given.device, dtype=torch.float32
    )
    arguments = (
        given, slope, given if factors is None else factors.float(), partial,
        examples, images, run, outs, channels, taps * channels, height, width, positions, kernel[1],
        *stride, *before, *dilation, _far(given), *given.stride()[1:],
        _far(slope), slope.stride(1), slope.stride(3 if across > 1 else 2),
    )  # fmt: skip
    options = {
        "ACROSS": across, "BLOCK_O": tiling.outs, "BLOCK_C": tiling.columns, "WEIGHTED": factors is not None,
        "SUMS": planes == 2, "PRECISION": _precision(), "num_warps": tiling.warps, "num_stages": tiling.stages,
    }  # fmt: skip
    if pairs:
        launch(kernels.pair_sums, (tiles, len(partial)), *arguments, BLOCK_N=tiling.positions, **options)
    else:
        options |= {"BLOCK_P": tiling.positions, "TAPS_APART": apart, "ONE_BLOCK": positions <= tiling.positions}
        launch(kernels.tile_sums, (tiles, len(partial)), *arguments, **options)
    return partial


def _far(tensor: Tensor) -> int:
    """From one example to the next; a lone one may have any stride."""
    return tensor.stride(0) if tensor.shape[0] > 1 else math.prod(tensor.shape[1:])


def tiling_for(outs: int, channels: int, taps: int, positions: int, slope: Tensor, pairs: bool = False) -> Tiling:
    """Fixed for a shape: tuned on an H200."""
    if pairs:
        return Tiling(min(64, _power(outs)), min(64, _power(channels)), PAIRED, programs=528)
    half = slope.dtype != torch.float32
    columns = min(64, _power(channels)) if channels >= NEIGHBOURS else min(32, _power(taps * channels))
    most = 64 if half or positions <= 64 else 32
    stages = 4 if half else 2 if _is_small(slope.device) else 3
    return Tiling(min(64, _power(outs)), columns, min(most, _power(positions)), stages=stages)


def _in_pairs(given: Tensor, slope: Tensor) -> bool:
    """In float32 alone: products of two numbers of half precision have more digits than the tensor cores would keep."""
    return (
        math.prod(slope.shape[2:]) <= FEW
        and given.shape[1] >= NEIGHBOURS
        and given.shape[0] == slope.shape[0]
        and slope.dtype == torch.float32
        and PAIRED * math.prod(given.shape[1:]) <= LARGEST
    )


def _is_small(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in SMALL


def _arranged(given: Tensor, slope: Tensor, pairs: bool) -> tuple[Tensor, Tensor]:
    """The tensor cores take float32 along positions only, others along channels, where windows need no single loads.

    Channels last, float32 sums of ResNet-18's per-example gradients took 12 ms where they take 3.5 otherwise.
    """
    if slope.dtype == torch.float32 and not pairs:
        return _turned(given, last=False), _turned(slope, last=False)
    if not pairs and given.shape[1] >= NEIGHBOURS:
        given = _turned(given, last=True)
    elif given.stride(0) == 1:  # examples as neighbours, where Triton would take the stride for a constant
        given = given.contiguous()
    return given, slope if slope.is_contiguous(memory_format=torch.channels_last) else slope.contiguous()


def _turned(image: Tensor, last: bool) -> Tensor:
    """Channels last, or positions."""
    before, after = torch.contiguous_format, torch.channels_last
    (examples, rows), columns = image.shape[:2], image.shape[2] * image.shape[3]
    if not last:
        before, after, rows, columns = after, before, columns, rows
    if image.is_contiguous(memory_format=after):
        return image
    from . import convolution_kernels as kernels  # needs Triton

    out = torch.empty_like(image, memory_format=after)
    programs = examples, math.ceil(columns / 64), math.ceil(rows / 64)  # no other axis may be as long as the first
    launch(kernels.transposed, programs, image.contiguous(memory_format=before), out, rows, columns, BLOCK=64)
    return out


def _power(number: int) -> int:
    """The next power of two, 16 at least: the tensor cores take no less."""
    return max(16, 1 << (number - 1).bit_length())


def _two(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """A convolution along one axis is one of an image of one row."""
    return (missing,) * (2 - len(values)) + values


def _precision() -> str:
    cudnn: Any = torch.backends.cudnn  # its parts are made when it is imported
    return "tf32" if cudnn.conv.fp32_precision == "tf32" else "ieee"
