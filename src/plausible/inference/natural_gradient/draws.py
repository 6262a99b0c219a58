"""A function of the weights at several draws: one after another, side by side on a GPU, or together with `vmap`."""

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
SIDE_BY_SIDE_WEIGHTS = 1 << 22  # of a network up to which one pass leaves most of a GPU idle


def mean_at(function: Callable[[Any, Weights], Any], model: Any, draws: Sequence[Weights], batch: Any) -> Any:
    """The mean over draws of every tensor in what `function(model, draw)` gives, in memory of its own."""
    if len(draws) == 1:
        return function(model, draws[0])
    if together(model, draws, batch):
        # Modes that are vectorised already leave no second way out of vmap, so there the slope is traced.
        inner = model.bound(inline=True) if under_vmap() else model
        stacked = {k: torch.stack([draw[k] for draw in draws]) for k in draws[0]}
        found = torch.vmap(lambda draw: function(inner, draw), randomness="error")(stacked)
        return pytree.tree_map(lambda t: t.mean(0), found)
    rows = _forked(function, model, draws) if _branches(model, draws) else [function(model, draw) for draw in draws]
    return pytree.tree_map(lambda *t: torch.stack(t).mean(0), *rows)


def together(model: Any, draws: Sequence[Weights], batch: Any) -> bool:
    """Whether draws share a pass: a rule of shapes alone, since the ways differ in the last bits."""
    count, on_gpu = len(draws), _on_gpu(draws[0])
    if count < TOGETHER_FROM or on_gpu and not under_vmap():
        return False
    examples = 0
    if isinstance(model, BayesianModel):
        network = model.network
        if network.written or network.draws or model.needs_key or not on_gpu and network.library_bound:
            return False
        examples = pytree.tree_leaves(batch[0])[0].shape[0]
    return count * (size(model.start) + ACTIVATIONS * examples) <= FLOATS_TOGETHER


def _on_gpu(weights: Weights) -> bool:
    return next(iter(weights.values())).device.type == "cuda"


def _branches(model: Any, draws: Sequence[Weights]) -> bool:
    """Whether draws get branches of their own in a CUDA graph: small networks do, where one is being recorded."""
    if isinstance(model, BayesianModel) and model.network.written:  # all at once, into the same memory
        return False
    if not _on_gpu(draws[0]) or under_vmap() or size(draws[0]) > SIDE_BY_SIDE_WEIGHTS:
        return False
    return torch.cuda.is_current_stream_capturing()


def _forked(function: Callable[[Any, Weights], Any], model: Any, draws: Sequence[Weights]) -> list[Any]:
    """One stream a draw, forked from the one that records and joined to it again."""
    trunk = torch.cuda.current_stream()
    branches = [torch.cuda.Stream() for _ in draws[1:]]
    for branch in branches:
        branch.wait_stream(trunk)
    # In the order of the draws: each pass spends the next of the step's keys, and a dropout mask is to be its draw's own.
    rows = [function(model, draws[0])]
    for draw, branch in zip(draws[1:], branches, strict=True):
        with torch.cuda.stream(branch):
            rows.append(function(model, draw))
    for branch in branches:
        trunk.wait_stream(branch)
    return rows
