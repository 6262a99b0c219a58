"""The whole matrix, for networks small enough to hold it."""

from __future__ import annotations

import torch
from torch import Tensor

from .rules.rule import blocks_of, room
from .tracing import Traced


def outer_products(traced: Traced, columns: Tensor) -> Tensor:
    """Σᵣ Σᵢ (Jᵢᵀ cᵣᵢ)(Jᵢᵀ cᵣᵢ)ᵀ over the weights of the trace, in the order of its names, laid flat one after another."""
    size = sum(traced.params[n].numel() for n in traced.names)
    like = next(iter(traced.params.values()))
    dtype = torch.promote_types(like.dtype, torch.float32)  # a sum of many halves needs more digits than they have
    total = torch.zeros(size, size, dtype=dtype, device=like.device)
    slopes = traced.pull(columns)
    for first, last in blocks_of(traced.examples, columns.shape[0] * size * like.element_size(), room(like.device)):
        each = traced.gradients(slopes, columns, traced.names, first, last)
        rows = columns.shape[0] * (last - first)
        flat = torch.cat([each[n].reshape(rows, -1) for n in traced.names], -1).to(dtype)
        total = total + flat.mT @ flat
    return total
