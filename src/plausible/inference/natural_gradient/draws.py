"""A function of weights and batch at several draws: one after another, side by side on a GPU, or together with `vmap`."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...core.method import require
from ...core.model import BayesianModel, InternalBatch
from ...curvature.eager import without_advice
from ...weights.algebra import Weights, size, under_vmap

log = logging.getLogger("plausible")

TOGETHER_FROM = 4  # draws: below it the batched kernels do not make up for vmap's own cost
FLOATS_TOGETHER = 1 << 22  # of weights and activations that draws may share a pass for
ACTIVATIONS = 64  # floats of an example, as a guess
SIDE_BY_SIDE_WEIGHTS = 1 << 22  # of a network up to which one pass leaves most of a GPU idle


def mean_at(
    function: Callable[[Any, Weights, Any], Any], model: Any, draws: Sequence[Weights], batch: Any, parts: int = 1
) -> Any:
    """The mean over draws of every tensor in what `function(model, draw, batch)` gives, in memory of its own.

    With several parts each draw sees one of them alone, in turn, as where every process has examples and draws of its own.
    """
    if len(draws) == 1:
        return function(model, draws[0], batch)
    if parts == 1 and together(model, draws, batch):
        # Modes that are vectorised already leave no second way out of vmap, so there the slope is traced.
        inner = model.bound(inline=True) if under_vmap() else model
        stacked = {k: torch.stack([draw[k] for draw in draws]) for k in draws[0]}
        found = _vectorised(lambda draw: function(inner, draw, batch), stacked, model)
        if found is not None:
            return pytree.tree_map(lambda t: t.mean(0), found)
    shares = [_part(batch, i % parts, parts) for i in range(len(draws))]
    passes = [functools.partial(function, model, draw, share) for draw, share in zip(draws, shares, strict=True)]
    rows = _forked(passes) if _branches(model, draws) else [run() for run in passes]
    return pytree.tree_map(lambda *t: torch.stack(t).mean(0), *rows)


_apart: weakref.WeakSet[Any] = weakref.WeakSet()  # networks that `vmap` cannot take


def _vectorised(function: Callable[[Weights], Any], stacked: Weights, model: Any) -> Any:
    """Of all draws at once; None where `vmap` cannot take the network, which is said once."""
    network = model.network if isinstance(model, BayesianModel) else None
    try:
        with without_advice():
            return torch.vmap(function, randomness="error")(stacked)
    except RuntimeError as error:
        if network is None or under_vmap():
            raise
        _apart.add(network)
        first = str(error).strip().splitlines()[0]
        log.warning("draws of a step run one after another, since this network cannot be vectorised: %s", first)
        return None


def _part(batch: Any, place: int, parts: int) -> Any:
    """Every so many-th example, since those without a say stand at the end of a batch; weights sum to what they did."""
    if parts == 1:
        return batch
    count = batch[2].shape[0]
    require(parts <= count, f"num_parts must be at most the {count} examples of a batch, got {parts}")
    inputs, targets, weights = pytree.tree_map(lambda t: t[place::parts].contiguous(), tuple(batch))
    return InternalBatch((inputs, targets, weights * parts))


def together(model: Any, draws: Sequence[Weights], batch: Any) -> bool:
    """Whether draws share a pass: a rule of shapes alone, since the ways differ in the last bits."""
    count, on_gpu = len(draws), _on_gpu(draws[0])
    if count < TOGETHER_FROM or on_gpu and not under_vmap():
        return False
    examples = 0
    if isinstance(model, BayesianModel):
        network = model.network
        if (
            network in _apart
            or network.written
            or network.draws
            or model.needs_key
            or not on_gpu
            and network.library_bound
        ):
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


def _forked(passes: Sequence[Callable[[], Any]]) -> list[Any]:
    """One stream a pass, forked from the one that records and joined to it again."""
    trunk = torch.cuda.current_stream()
    branches = [torch.cuda.Stream() for _ in passes[1:]]
    for branch in branches:
        branch.wait_stream(trunk)
    # In the order of the draws: each pass spends the next of the step's keys, and a dropout mask is to be its draw's own.
    rows = [passes[0]()]
    for run, branch in zip(passes[1:], branches, strict=True):
        with torch.cuda.stream(branch):
            rows.append(run())
    for branch in branches:
        trunk.wait_stream(branch)
    return rows
