"""What a rule answers.

Everywhere `given` is what was recorded of the input, `slope` the gradient of the output with a leading axis of R
columns, and N the number of examples.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..layouts import Layout

CHUNK = 64 * 1024**2  # bytes that one block of per-example gradients may take,
GPU_CHUNK = 1024**3  # and on a GPU, where a block must be large to be worth its launches
CACHE = 4 * 1024**2  # bytes of them that are squared and added up before they leave the processor


class Rule(ABC):
    """One kind of operation with weights."""

    def suits(self, layout: Layout) -> bool:
        """Whether it can read tensors laid out like this."""
        return True

    @abstractmethod
    def weight_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(R, N, weight shape)."""

    @abstractmethod
    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(R, N, bias shape)."""

    def weight_squares(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Squared per-example gradients, summed over columns and examples."""
        return self.weight_gradients(given, slope, layout, examples).square().sum((0, 1))

    def bias_squares(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Likewise for the bias."""
        return self.bias_gradients(given, slope, layout, examples).square().sum((0, 1))

    def moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int, weight: bool, bias: bool
    ) -> tuple[Any, Any]:
        """What `weight_moments` and `bias_moments` say, None of what is not wanted."""
        rest = (given, slope, factors, layout, examples)
        return self.weight_moments(*rest) if weight else None, self.bias_moments(*rest) if bias else None

    def weight_moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int
    ) -> tuple[Tensor, Tensor]:
        """Σ gᵢ and Σ fᵢ gᵢ² over columns and examples, for factors (N,)."""
        return _moments(self.weight_gradients(given, slope, layout, examples), factors)

    def bias_moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int
    ) -> tuple[Tensor, Tensor]:
        """Likewise for the bias."""
        return _moments(self.bias_gradients(given, slope, layout, examples), factors)


class MatrixRule(Rule):
    """An operation whose weight gradient is Σₜ left ⊗ right over positions t, in groups: linear maps and convolutions.

    The weight as a matrix (G, rows, columns) is its first axis, split into groups, beside all its other axes.
    """

    rows_are_outputs: Any  # whether rows go with `left`; then a bias is one more column
    spread: Any = 1  # how many windows overlap
    size: int  # of the weight

    @abstractmethod
    def left(self, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, o) of one column of output gradients."""

    @abstractmethod
    def right(self, given: Any, layout: Layout, examples: int) -> Tensor:
        """(N, G, T, i)."""

    @abstractmethod
    def pack(self, matrices: Tensor) -> Tensor:
        """(..., G, o, i) as (..., weight shape)."""

    def sort_left(self, factor: Tensor) -> Tensor:
        """(G, o, o) products of lefts, in the order of the weight's axes."""
        return factor

    def sort_right(self, factor: Tensor) -> Tensor:
        """(G, i, i) products of rights likewise; a bias may be one more."""
        return factor

    def lefts(self, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(R, N, G, T, o)."""
        return for_columns(lambda s: self.left(s, layout, examples), slope)

    def weight_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(R, N, weight shape)."""
        left, right = _alike(self.lefts(slope, layout, examples), self.right(given, layout, examples))
        return self.pack(torch.einsum("rngto,ngti->rngoi", left, right))

    def weight_squares(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """One product of squares where an example has one position; else example by example, in blocks."""
        pieces = self._pieces(given, slope, layout, examples)
        if len(pieces) == 1:
            return self.pack(self._squares(given, slope, layout, examples))
        total: Any = None
        for begin, end in pieces:
            take = functools.partial(layout.take, begin=begin, end=end, examples=examples)
            total = self._squares(take(given), for_columns(take, slope), layout, end - begin, total)
        return self.pack(total)

    def weight_moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int
    ) -> tuple[Tensor, Tensor]:
        """The sum by one product over examples and positions."""
        left, right = _alike(self.lefts(slope, layout, examples), self.right(given, layout, examples))
        sums = self.pack(torch.einsum("rngto,ngti->goi", left, right))
        if left.shape[0] == left.shape[3] == 1:
            weighted = left[0, ..., 0, :].square() * factors.to(left.dtype)[:, None, None]
            return sums, self.pack(weighted.permute(1, 2, 0) @ right[..., 0, :].square().transpose(0, 1))
        root = layout.times(slope, factors.sqrt(), in_front=1)
        return sums, self.weight_squares(given, root, layout, examples)

    def _squares(
        self, given: Any, slope: Tensor, layout: Layout, examples: int, earlier: Tensor | None = None
    ) -> Tensor:
        """(G, o, i), added to those of earlier examples, which are written into."""
        left, right = _alike(self.lefts(slope, layout, examples), self.right(given, layout, examples))
        columns, _, _, positions, outs = left.shape
        if positions == 1:
            lefts = left[0, ..., 0, :].square() if columns == 1 else left[..., 0, :].square().sum(0)
            found = lefts.permute(1, 2, 0) @ right[..., 0, :].square().transpose(0, 1)
            return found if earlier is None else earlier.add_(found)
        rows = left.permute(1, 2, 0, 4, 3).flatten(2, 3)  # (N, G, R o, T)
        each = rows @ right
        if examples == columns == 1 and earlier is not None:
            return earlier.addcmul_(each[0], each[0])  # one pass over as many numbers as the weight has, not two
        found = each[0].square() if examples == 1 else each.square().sum(0)
        found = found if columns == 1 else found.unflatten(1, (columns, outs)).sum(1)
        return found if earlier is None else earlier.add_(found)

    def _pieces(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> list[tuple[int, int]]:
        """Examples in blocks whose windows, laid flat, and gradients stay in a processor's cache."""
        if layout.order == "own" and given.dim() == 2:
            return [(0, examples)]  # nothing is laid flat
        numbers = self.spread * (given.numel() + slope.numel()) // examples + slope.shape[0] * self.size
        return blocks_of(examples, 4 * numbers, CACHE if given.device.type == "cpu" else room(given.device))


def room(device: torch.device) -> int:
    """Bytes for one block."""
    return GPU_CHUNK if device.type == "cuda" else CHUNK


def blocks_of(examples: int, each: int, bytes_: int) -> list[tuple[int, int]]:
    """(begin, end) of blocks of examples that take `each` bytes and together no more than there are."""
    block = min(examples, max(1, bytes_ // max(1, each)))
    return [(b, min(b + block, examples)) for b in range(0, examples, block)]


def for_columns(function: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """Of every column; most often there is one, and `vmap` is not free."""
    return function(columns[0]).unsqueeze(0) if columns.shape[0] == 1 else torch.vmap(function)(columns)


def _moments(gradients: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Of gradients (R, N, shape)."""
    wide = gradients.to(torch.promote_types(gradients.dtype, torch.float32))
    squares = wide.square() * factors.to(wide.dtype).reshape(-1, *[1] * (wide.dim() - 2))
    return wide.sum((0, 1)), squares.sum((0, 1))


def _alike(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """In mixed precision an input and a gradient may have different dtypes; sums are taken in the wider, float32 at least."""
    dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
    return left.to(dtype), right.to(dtype)
