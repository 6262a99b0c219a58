"""Convolutions and transposed convolutions in one to three dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...weights.algebra import under_vmap
from ..fused import convolution as fused
from ..fused import norms as fused_norms
from ..layouts import Layout
from .rule import MatrixRule, for_columns


@dataclass(frozen=True)
class Convolution(MatrixRule):
    """A linear map of every window."""

    size: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after, for every axis
    dilation: tuple[int, ...]
    groups: int
    rows_are_outputs = True

    @property
    def spread(self) -> int:
        """Every number is in that many windows."""
        return math.prod(self.kernel)

    def left(self, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, channels out)."""
        return _folded(_channels_last(slope, self.groups), layout, examples)

    def right(self, given: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, window × channels in)."""
        seen = windows(given, self.kernel, self.stride, self.padding, self.dilation, self.groups)
        return _folded(seen, layout, examples)

    def weight_squares(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """By a kernel of its own where there is one; else windows are laid flat."""
        if fused.usable(self, given, slope, layout):
            return fused.moments(self, given, slope, sums=False)[0]
        return super().weight_squares(given, slope, layout, examples)

    def weight_moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int
    ) -> tuple[Tensor, Tensor]:
        """Likewise."""
        if fused.usable(self, given, slope, layout):
            sums, squares = fused.moments(self, given, slope, factors)
            return sums, squares
        return super().weight_moments(given, slope, factors, layout, examples)

    def pack(self, matrices: Tensor) -> Tensor:
        """(G, o, k i) → (G o, i, k...)."""
        return matrices.flatten(-3, -2).unflatten(-1, (*self.kernel, -1)).movedim(-1, -1 - len(self.kernel))

    def sort_right(self, factor: Tensor) -> Tensor:
        """(k i) → (i k)."""
        return _channels_before_window(factor, math.prod(self.kernel))

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Summed over positions."""
        return self.lefts(slope, layout, examples).sum(3).flatten(2)

    def bias_moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int
    ) -> tuple[Tensor, Tensor]:
        """By a kernel of its own where there is one."""
        if slope.shape[0] == 1 and fused_norms.usable(slope, slope, layout):
            sums, squares = fused_norms.bias_moments(slope[0], factors)
            return sums, squares
        return super().bias_moments(given, slope, factors, layout, examples)

    def suits(self, layout: Layout) -> bool:
        """Examples are first."""
        return layout.axis == 0


@dataclass(frozen=True)
class TransposedConvolution(MatrixRule):
    """The transpose of a convolution: every input meets the window of outputs that it writes."""

    size: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    extent: tuple[int, ...]  # of the input, in space
    rows_are_outputs = False  # but inputs, so a bias of the outputs is no column of the weight

    @property
    def spread(self) -> int:
        """Every number is in that many windows."""
        return math.prod(self.kernel)

    def left(self, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, window × channels out)."""
        pads = tuple((p, p) for p in self.padding)
        seen = windows(slope, self.kernel, self.stride, pads, self.dilation, self.groups, self.extent)
        return _folded(seen, layout, examples)

    def right(self, given: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, channels in)."""
        return _folded(_channels_last(given, self.groups), layout, examples)

    def pack(self, matrices: Tensor) -> Tensor:
        """(G, k o, i) → (G i, o, k...)."""
        return matrices.mT.flatten(-3, -2).unflatten(-1, (*self.kernel, -1)).movedim(-1, -1 - len(self.kernel))

    def sort_left(self, factor: Tensor) -> Tensor:
        """(k o) → (o k)."""
        return _channels_before_window(factor, math.prod(self.kernel))

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Summed over positions."""
        return for_columns(lambda s: _folded(_channels_last(s, 1), layout, examples).sum(2).flatten(1), slope)

    def suits(self, layout: Layout) -> bool:
        """Examples are first."""
        return layout.axis == 0


def windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...], groups: int, extent: tuple[int, ...] | None = None,
) -> Tensor:  # fmt: skip
    """(B, G, T, window × channels): all windows of an image, laid flat.

    Channels come last in memory, so that what is copied is runs of a window's row rather than single numbers.
    """
    dims = len(kernel)
    x = _padded_with_channels_last(x, padding)
    for axis, (size, step, spread) in enumerate(zip(kernel, stride, dilation, strict=True), start=1):
        x = x.unfold(axis, (size - 1) * spread + 1, step)[..., ::spread]
        if extent is not None:
            x = x.narrow(axis, 0, extent[axis - 1])
    x = x.unflatten(1 + dims, (groups, -1))  # (B, places..., G, c, window...)
    places, inside = range(1, 1 + dims), range(3 + dims, 3 + 2 * dims)
    x = x.permute(0, 1 + dims, *places, *inside, 2 + dims)
    return x.flatten(2 + dims).flatten(2, 1 + dims)


def _padded_with_channels_last(x: Tensor, padding: tuple[tuple[int, int], ...]) -> Tensor:
    """(B, places..., channels)."""
    x = x.movedim(1, -1)
    if under_vmap() or not any(p for pair in padding for p in pair):
        return F.pad(x, [0, 0, *(p for pair in reversed(padding) for p in pair)]).contiguous()
    # In one copy instead of two.
    sizes = [before + size + after for size, (before, after) in zip(x.shape[1:-1], padding, strict=True)]
    out = inside = x.new_zeros(x.shape[0], *sizes, x.shape[-1])
    for axis, (before, _) in enumerate(padding, start=1):
        inside = inside.narrow(axis, before, x.shape[axis])
    inside.copy_(x)
    return out


def _channels_before_window(factor: Tensor, window: int) -> Tensor:
    """(G, d, d) in the order of a weight's axes; a bias, if there is one, stays last."""
    size = factor.shape[-1]
    inside = size - size % window  # a bias is the one number too many
    order = torch.arange(inside, device=factor.device).reshape(window, -1).T.flatten()
    order = torch.cat([order, torch.arange(inside, size, device=factor.device)])
    return factor[:, order][:, :, order]


def _channels_last(x: Tensor, groups: int) -> Tensor:
    """(B, G c, places...) → (B, G, T, c)."""
    return x.unflatten(1, (groups, -1)).flatten(3).mT


def _folded(matrices: Tensor, layout: Layout, examples: int) -> Tensor:
    """(B, G, T, c) → (N, G, T', c): images that belong to one example, such as the frames of a film, are positions."""
    return layout.split(matrices, examples).transpose(1, 2).flatten(2, 3)


# --- reading a call ---


def _convolution(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, dims = given["input"], given["weight"], given["weight"].dim() - 2
    if x.dim() != dims + 2:
        return None
    kernel, dilation = tuple(weight.shape[2:]), _each(given.get("dilation", 1), dims)
    padding = given.get("padding", 0)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = tuple((t // 2, t - t // 2) for t in total)
    else:
        pads = tuple((p, p) for p in _each(0 if padding == "valid" else padding, dims))
    rule = Convolution(
        weight.numel(), kernel, _each(given.get("stride", 1), dims), pads, dilation, given.get("groups", 1)
    )
    return rule, x, weight, given.get("bias"), lambda: func(*args, **kwargs)


def _transposed(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, dims = given["input"], given["weight"], given["weight"].dim() - 2
    if x.dim() != dims + 2:
        return None
    rule = TransposedConvolution(
        weight.numel(), tuple(weight.shape[2:]), _each(given.get("stride", 1), dims), _each(given.get("padding", 0), dims),
        _each(given.get("dilation", 1), dims), given.get("groups", 1), tuple(x.shape[2:]),
    )  # fmt: skip
    return rule, x, weight, given.get("bias"), lambda: func(*args, **kwargs)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


READERS = {
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.conv_transpose1d: _transposed,
    torch.conv_transpose2d: _transposed,
    torch.conv_transpose3d: _transposed,
}
