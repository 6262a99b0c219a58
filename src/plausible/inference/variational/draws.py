"""The log joint and its slope at several draws: one after another, or together with `vmap`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.model import BayesianModel
from ...weights.algebra import Weights, from_vector, slow_vmap_is_an_error, to_vector, under_vmap

TOGETHER_FROM = 4  # draws: below it the batched kernels do not make up for vmap's own cost
FLOATS_TOGETHER = 1 << 22  # of weights and activations that draws share a pass for
ACTIVATIONS = 64  # floats of an example, as a guess


def slopes_at(model: Any, points: Tensor, like: Weights, batch: Any) -> tuple[Tensor, Tensor]:
    """Log joints (K,) and slopes (K, P) at the rows of `points` (K, P), which are unknowns in the names and shapes of `like`."""
    count = points.shape[0]
    together = _together(model, points, batch) if count >= TOGETHER_FROM else 1
    if together >= TOGETHER_FROM and model.inline:  # a compiler reads no `try`, and gives up by itself
        return _in_blocks(model, points, like, batch, together)
    if together >= TOGETHER_FROM:
        try:
            with slow_vmap_is_an_error():
                return _in_blocks(model, points, like, batch, together)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, UserWarning):
            pass  # a network that vmap cannot run is one that a loop can, or says better why not
    found = [_one(model, point, like, batch) for point in points.unbind(0)]
    if count == 1:
        return found[0][0].unsqueeze(0), found[0][1].unsqueeze(0)
    return torch.stack([v for v, _ in found]), torch.stack([s for _, s in found])


def _one(model: Any, point: Tensor, like: Weights, batch: Any) -> tuple[Tensor, Tensor]:
    value, slopes = model.slope(from_vector(point, like), batch)
    return value, to_vector({k: slopes[k] for k in like})


def _in_blocks(model: Any, points: Tensor, like: Weights, batch: Any, together: int) -> tuple[Tensor, Tensor]:
    blocks = [_vectorised(model, block, like, batch) for block in points.split(together)]
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat([v for v, _ in blocks]), torch.cat([s for _, s in blocks])


def _vectorised(model: Any, points: Tensor, like: Weights, batch: Any) -> tuple[Tensor, Tensor]:
    # Modes that are vectorised already leave no second way out of vmap, so there the slope is traced.
    inner = model.bound(inline=True) if under_vmap() else model
    return torch.vmap(lambda point: _one(inner, point, like, batch), randomness="error")(points)


def _together(model: Any, points: Tensor, batch: Any) -> int:
    """How many draws share a pass: a rule of shapes alone, since the ways differ in the last bits."""
    size = points.shape[1]
    if not isinstance(model, BayesianModel):
        return max(1, FLOATS_TOGETHER // size)
    network = model.network
    on_cpu = points.device.type == "cpu"
    if network.written or network.draws or model.needs_key or on_cpu and network.library_bound:
        return 1
    examples = torch.utils._pytree.tree_leaves(batch[0])[0].shape[0]
    return max(1, FLOATS_TOGETHER // (size + ACTIVATIONS * examples))
