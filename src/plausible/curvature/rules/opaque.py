"""Operations that no rule knows: differentiated alone, with an output gradient that has only one example's part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..layouts import Layout
from .rule import Rule


@dataclass(frozen=True)
class Opaque(Rule):
    """Output number `part` of any operation; the numbers of the arguments that are weights are `places`."""

    function: Callable[..., Any]
    places: tuple[int, ...]
    part: int

    def between(
        self, given: Any, slope: Tensor, layout: Layout, examples: int, begin: int, end: int
    ) -> tuple[Tensor, ...]:
        """(R, end - begin, weight shape) for every weight: as many backward passes as there are examples."""
        leaves, spec = pytree.tree_flatten(given)

        def run(weights: list[Tensor]) -> Tensor:
            own = list(leaves)
            for place, w in zip(self.places, weights, strict=True):
                own[place] = w
            args, kwargs = pytree.tree_unflatten(own, spec)
            return pytree.tree_leaves(self.function(*args, **kwargs))[self.part]

        pair: Any = torch.func.vjp(run, [leaves[i] for i in self.places])
        out, back = pair
        rows = []
        for i in range(begin, end):
            only = layout.only(slope.to(out.dtype), i, examples, in_front=1)
            rows.append([torch.stack(g) for g in zip(*[back(column)[0] for column in only], strict=True)])
        wide = [torch.stack(g, 1) for g in zip(*rows, strict=True)]
        return tuple(g.to(torch.promote_types(g.dtype, torch.float32)) for g in wide)

    def weight_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Any:
        """Of every weight."""
        return self.between(given, slope, layout, examples, 0, examples)

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """All are weights."""
        raise NotImplementedError
