"""A function of the weights at several draws: one after another, or together with `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...core.model import BayesianModel
from ...weights.algebra import Weights, size, under_vmap

TOGETHER_FROM = 4  # draws: below it the batched kernels do not make up for vmap's own cost
FLOATS_TOGETHER = 1 << 22  # of weights and activations that draws may share a pass for
ACTIVATIONS = 64  # floats of an example, as a guess


def mean_at(function: Callable[[Any, Weights], Any], model: Any, draws: Sequence[Weights], batch: Any) -> Any:
    """The mean over draws of every tensor in what `function(model, draw)` gives, in memory of its own."""
    if len(draws) == 1:
        return function(model, draws[0])
    if together(model, len(draws), batch):
        # Modes that are vectorised already leave no second way out of vmap, so there the slope is traced.
        inner = model.bound(inline=True) if under_vmap() else model
        stacked = {k: torch.stack([draw[k] for draw in draws]) for k in draws[0]}
        found = torch.vmap(lambda draw: function(inner, draw), randomness="error")(stacked)
        return pytree.tree_map(lambda t: t.mean(0), found)
    rows = [function(model, draw) for draw in draws]
    return pytree.tree_map(lambda *t: torch.stack(t).mean(0), *rows)


def together(model: Any, count: int, batch: Any) -> bool:
    """Whether draws share a pass: a rule of shapes alone, since the ways differ in the last bits."""
    if count < TOGETHER_FROM:
        return False
    examples = 0
    if isinstance(model, BayesianModel):
        network = model.network
        on_cpu = batch[-1].device.type == "cpu"
        if network.written or network.draws or model.needs_key or on_cpu and network.library_bound:
            return False
        examples = pytree.tree_leaves(batch[0])[0].shape[0]
    return count * (size(model.start) + ACTIVATIONS * examples) <= FLOATS_TOGETHER
