"""Weights that are added to something or multiplied by it, element by element: positions, gains, free biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layouts import Layout
from .rule import Rule, for_columns


@dataclass(frozen=True)
class Elementwise(Rule):
    """y = x ∘ w with w broadcast; `factor` is what multiplies its slope, `product` whether that is also x."""

    shape: tuple[int, ...]  # of w
    dims: int  # of y
    product: bool
    factor: float = 1.0

    def weight_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Slopes summed over the axes along which w is broadcast, an example at a time."""
        values = slope.to(torch.promote_types(slope.dtype, torch.float32))
        values = values * given if self.product else values
        padded = (1,) * (self.dims - len(self.shape)) + self.shape
        kept = [size for axis, size in enumerate(padded) if axis != layout.axis]

        def one(column: Tensor) -> Tensor:
            split = layout.split(column, examples)
            axes = [1, *(a + 2 for a, size in enumerate(kept) if size == 1)]
            return split.sum(axes).reshape(examples, *self.shape)

        return for_columns(one, values) * self.factor

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """There is no bias."""
        raise NotImplementedError

    def suits(self, layout: Layout) -> bool:
        """Examples must not have weights of their own."""
        padded = (1,) * (self.dims - len(self.shape)) + self.shape
        return padded[layout.axis] == 1


def _reader(product: bool, sign: float = 1.0, in_place: bool = False) -> Any:
    def read(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
        if kwargs or len(args) != 2 or not all(isinstance(t, Tensor) for t in args):
            return None
        first, second = args
        if in_place and not is_weight(second):
            return None
        weight, other, factor = (second, first, sign) if is_weight(second) else (first, second, 1.0)
        shape = torch.broadcast_shapes(weight.shape, other.shape)
        rule = Elementwise(tuple(weight.shape), len(shape), product, factor)
        given = None
        if product:
            given = other.expand(shape).clone() if in_place else other.expand(shape)
        return rule, given, weight, None, lambda: func(first, second)

    return read


READERS = {
    torch.add: _reader(False), torch.Tensor.add: _reader(False), torch.Tensor.__add__: _reader(False),
    torch.Tensor.__radd__: _reader(False), torch.sub: _reader(False, -1.0), torch.Tensor.sub: _reader(False, -1.0),
    torch.Tensor.__sub__: _reader(False, -1.0), torch.mul: _reader(True), torch.Tensor.mul: _reader(True),
    torch.Tensor.__mul__: _reader(True), torch.Tensor.__rmul__: _reader(True),
    torch.Tensor.add_: _reader(False, in_place=True), torch.Tensor.__iadd__: _reader(False, in_place=True),
    torch.Tensor.sub_: _reader(False, -1.0, True), torch.Tensor.__isub__: _reader(False, -1.0, True),
    torch.Tensor.mul_: _reader(True, in_place=True), torch.Tensor.__imul__: _reader(True, in_place=True),
}  # fmt: skip
