"""Gradients example by example, by plain automatic differentiation: exact for any network whose examples do not meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core import batch as batches
from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from .rules.rule import room


def gradients_by_example(
    model: BayesianModel,
    params: Mapping[str, Tensor],
    inputs: Any,
    columns: Tensor,
    names: Sequence[str],
    key: Tensor | None,
) -> Weights:
    """(R, N, shape) for every name: column r of example i pulled back to the weights."""
    own = {n: params[n] for n in names}
    rest = {k: v for k, v in params.items() if k not in own}

    def output(weights: Weights, batch: Any) -> Tensor:
        return model.outputs({**rest, **weights}, batch, key)[0]

    def one(single: Any, column: Tensor) -> Weights:
        batch = pytree.tree_map(lambda t: t.unsqueeze(0), single)
        back = torch.func.vjp(lambda weights: output(weights, batch), own)[1]
        if len(column) == 1:  # a `vmap` over one column would still cost a convolution its good shape
            return {k: g.unsqueeze(0) for k, g in back(column[0])[0].items()}
        return torch.vmap(lambda c: back(c)[0])(column)

    each = columns.movedim(0, 1)  # (N, R, ...)
    size = max(1, columns.shape[0] * sum(w.numel() * w.element_size() for w in own.values()))
    block = max(1, room(columns.device) // size)
    try:
        found = torch.vmap(one, chunk_size=block if block < len(each) else None, randomness="error")(inputs, each)
    except RuntimeError:  # an operation that vmap does not know
        if under_vmap():
            raise
        rows = [
            _by_autograd(lambda w, i=i: output(w, batches.rows(inputs, slice(i, i + 1))), own, each[i])
            for i in range(columns.shape[1])
        ]
        found = {n: torch.stack([row[n] for row in rows]) for n in names}
    return {n: g.movedim(0, 1) for n, g in found.items()}


def _by_autograd(output: Any, own: Weights, columns: Tensor) -> Weights:
    leaves = {k: w.detach().requires_grad_() for k, w in own.items()}
    with torch.enable_grad():
        out = output(leaves)
    options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    rows = [torch.autograd.grad(out, list(leaves.values()), c, **options) for c in columns]
    return {k: torch.stack([row[i] for row in rows]) for i, k in enumerate(leaves)}
