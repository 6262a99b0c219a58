"""Linear maps of the last axis, however they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..fused import linear as fused
from ..layouts import Layout
from .rule import MatrixRule


@dataclass(frozen=True)
class Linear(MatrixRule):
    """y = x Wᵀ + b; `transposed` for y = x W."""

    size: int
    transposed: bool = False

    @property
    def rows_are_outputs(self) -> bool:
        """Of the weight as a matrix."""
        return not self.transposed

    def left(self, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, 1, T, outputs)."""
        return _positions(slope, layout, examples)

    def right(self, given: Tensor, layout: Layout, examples: int) -> Tensor:
        """(N, 1, T, inputs)."""
        return _positions(given, layout, examples)

    def pack(self, matrices: Tensor) -> Tensor:
        """Without the group axis."""
        own = matrices.squeeze(-3)
        return own.mT if self.transposed else own

    def moments(
        self, given: Any, slope: Tensor, factors: Tensor, layout: Layout, examples: int, weight: bool, bias: bool
    ) -> tuple[Any, Any]:
        """By one kernel where the layer is small and on a GPU."""
        if weight and fused.usable(given, slope, layout):
            of_weight, of_bias = fused.moments(given, slope, factors)
            return of_weight.mT if self.transposed else of_weight, of_bias if bias else None
        return super().moments(given, slope, factors, layout, examples, weight, bias)

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Summed over positions."""
        return self.lefts(slope, layout, examples).sum((2, 3))


def _positions(tensor: Tensor, layout: Layout, examples: int) -> Tensor:
    return layout.split(tensor, examples).flatten(1, -2).unsqueeze(1)


def _linear(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    x, weight = _named(args, kwargs, 0, "input"), _named(args, kwargs, 1, "weight")
    bias = _named(args, kwargs, 2, "bias")
    if weight.dim() != 2 or x.dim() < 2:
        return None
    return Linear(weight.numel()), x, weight, bias, lambda: func(*args, **kwargs)


def _matmul(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    if kwargs or len(args) != 2 or not all(isinstance(t, Tensor) for t in args):
        return None
    x, weight = args
    if weight.dim() != 2 or x.dim() < 2:
        return None
    return Linear(weight.numel(), transposed=True), x, weight, None, lambda: func(x, weight)


def _addmm(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    if kwargs or len(args) != 3 or args[0].dim() != 1 or args[2].dim() != 2:
        return None
    bias, x, weight = args
    return Linear(weight.numel(), transposed=True), x, weight, bias, lambda: func(bias, x, weight)


def _named(args: tuple, kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


READERS = {
    torch.nn.functional.linear: _linear,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.addmm: _addmm,
}
