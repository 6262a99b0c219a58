"""Squares of per-example gradients, summed: the diagonal of every kind of curvature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..weights.algebra import Weights, wide_zeros
from .rules.rule import blocks_of, room
from .tracing import Traced


def squares(
    traced: Traced, columns: Tensor, names: Sequence[str] | None = None, slopes: list[Tensor] | None = None
) -> Weights:
    """Σᵣ Σᵢ (Jᵢᵀ cᵣᵢ)² for columns (R, N, outputs...), elementwise for every weight of the trace.

    Args:
        traced: The pass.
        columns: What to pull back.
        names: Some of the weights only.
        slopes: The columns pulled back, where that is done already.
    """
    slopes = traced.pull(columns) if slopes is None else slopes
    names = traced.names if names is None else names
    plan, found, together = traced.plan, {}, []
    for name in names:
        direct = plan.direct(name)
        if direct is None:
            together.append(name)
            continue
        i, role = direct
        rule = plan.calls[i].rule
        own = rule.weight_squares if role == "weight" else rule.bias_squares
        each = own(traced.given[i], slopes[i], plan.layouts[i], traced.examples)
        found[name] = each.to(torch.promote_types(traced.params[name].dtype, torch.float32))
    if together:
        found.update(_added_up_first(traced, slopes, columns, together))
    return {name: found[name] for name in names}


def _added_up_first(traced: Traced, slopes: list[Tensor], columns: Tensor, names: list[str]) -> Weights:
    """Weights with several uses: an example's gradients are added up before they are squared."""
    used = sum(call.size for call in traced.calls if not set(names).isdisjoint(call.names))
    numbers = columns.shape[0] * (used + sum(traced.params[n].numel() for n in names))
    found = {n: wide_zeros(traced.params[n]) for n in names}
    for begin, end in blocks_of(traced.examples, numbers * columns.element_size(), room(columns.device)):
        each = traced.gradients(slopes, columns, names, begin, end)
        found = {n: found[n] + each[n].to(found[n].dtype).square().sum((0, 1)) for n in names}
    return found
