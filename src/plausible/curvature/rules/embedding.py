"""Rows looked up by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layouts import Layout
from .rule import Rule, for_columns


@dataclass(frozen=True)
class Embedding(Rule):
    """y = W[index]; a row of the table gets the sum of the slopes where an example looked it up."""

    rows: int
    padding: int  # a row that does not learn, or -1

    def weight_gradients(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """A table per example: large, so only for tables that are used in more ways than one."""
        index, slopes = self._places(given, slope, layout, examples)
        table = slopes.new_zeros(slopes.shape[0], examples, self.rows, slopes.shape[-1])
        where = index.expand(slopes.shape[:3]).unsqueeze(-1).expand_as(slopes)
        return table.scatter_add(2, where, slopes)

    def weight_squares(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Without a table per example: slopes of an example's equal indices are added up before they are squared."""
        index, slopes = self._places(given, slope, layout, examples)
        alike = (index.unsqueeze(2) == index.unsqueeze(1)).to(slopes.dtype)  # (N, T, T)
        summed = torch.einsum("nts,rnsd->rntd", alike, slopes)
        squares = summed.square().sum(0) / alike.sum(2, keepdim=True)  # every one of m equals brings an m-th
        table = slopes.new_zeros(self.rows, slopes.shape[-1])
        return table.index_add(0, index.flatten(), squares.flatten(0, 1))

    def counts(self, given: Tensor, weights: Tensor, layout: Layout, examples: int) -> Tensor:
        """How often each row is looked up, by the examples' weights."""
        index = layout.split(given, examples).flatten(1)
        often = weights.unsqueeze(1) * (index != self.padding)
        return often.new_zeros(self.rows).index_add(0, index.flatten(), often.flatten())

    def slope_products(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Σ over columns, examples and positions of slope ⊗ slope."""
        _, slopes = self._places(given, slope, layout, examples)
        flat = slopes.flatten(0, 2)
        return flat.mT @ flat

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """There is no bias."""
        raise NotImplementedError

    def _places(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> tuple[Tensor, Tensor]:
        index = layout.split(given, examples).flatten(1)
        slopes = for_columns(lambda s: layout.split(s, examples).flatten(1, -2), slope)
        slopes = slopes.to(torch.promote_types(slopes.dtype, torch.float32))
        return index, slopes * (index != self.padding).unsqueeze(-1)


def _embedding(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("scale_grad_by_freq", False):  # its gradient is not the derivative
        return None
    rule = Embedding(given["weight"].shape[0], given.get("padding_idx", -1))
    return rule, given["indices"], given["weight"], None, lambda: func(*args, **kwargs)


READERS = {torch.embedding: _embedding}
