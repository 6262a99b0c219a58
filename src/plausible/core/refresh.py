"""Statistics of norm layers for every draw of the weights, gathered from training data.

A norm's running statistics belong to one set of weights. Those of an average or a sample are not the average of the
statistics, so they are computed by running training data through each draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..weights import tree
from ..weights.algebra import Weights
from ..weights.rng import forked
from . import batch as batches
from .data import make_source
from .model import BayesianModel
from .posteriors.dropout import Dropout
from .posteriors.gaussian import Gaussian
from .posteriors.posterior import Posterior

EXAMPLES = 2048  # of the training data: a norm's mean and variance are averages over these and over positions
BATCH = 256
MASKS = 0x6D61736B  # the stream of dropout masks under which statistics are gathered


def refresh(posterior: Posterior, data: Any, num_samples: int, seed: int) -> None:
    """Fill the banks of a posterior (and of a mixture's components) for `predict(num_samples=..., seed=...)`."""
    model = posterior.model
    if not isinstance(model, BayesianModel) or not model.network.statistics:
        return
    source = make_source(model, data, batch_size=BATCH, seed=seed, device=posterior.device, num_data=model.num_data)
    fill(posterior, list(source.some_inputs(EXAMPLES)), num_samples, seed)


def fill(posterior: Posterior, blocks: list[Any], num_samples: int, seed: int) -> None:
    """Fill the banks from blocks of inputs."""
    for stratum in posterior.strata(num_samples, seed):
        if stratum.posterior.linearised_by_default and stratum.posterior.mean_bank is not None:
            continue  # a curvature belongs to the statistics at which it was taken, and so does a draw from it
        if isinstance(stratum.posterior, Dropout):
            _fill_under_masks(stratum.posterior, blocks, stratum.seed)
            continue
        count = max(stratum.indices) + 1
        rows = [
            statistics_of(posterior.model, tree.unstack(stratum.posterior.draw([i], stratum.seed), 0), blocks)
            for i in range(count)
        ]
        other = {k: v[:count] for k, v in (stratum.posterior.bank or {}).items() if k not in rows[0]}
        own = stratum.posterior
        own.bank, own.bank_seed = {**other, **tree.stack(rows)}, stratum.seed
        if isinstance(own, Gaussian):  # which may be asked to predict with the network linearised at its mean
            own.mean_bank = statistics_of(posterior.model, own.mean, blocks)


def _fill_under_masks(posterior: Dropout, blocks: list[Any], seed: int) -> None:
    """One set of statistics for all passes, gathered as training would have: with masks on."""
    model = posterior.model.bound(around=posterior.around())
    with forked(seed, MASKS, devices=[posterior.device]):
        posterior.mean_bank = statistics_of(model, posterior.params, blocks)


def statistics_of(model: BayesianModel, params: Weights, blocks: Iterable[Any]) -> Weights:
    """The norm statistics of one set of weights."""
    device = next(iter(params.values())).device
    buffers, seen = model.network.fresh_buffers(device), 0
    weights = model.natural_weights(params)
    with torch.no_grad():
        for inputs in _without_a_lone_last(list(blocks)):
            size = batches.length(inputs)
            seen += size
            model.network.set_refresh_momentum(device, size / seen)  # the running mean over all examples so far
            with nullcontext() if model.around is None else model.around(weights, None):
                model.network(weights, batches.place(inputs, device), role="refresh", buffers=buffers)
    return buffers


def _without_a_lone_last(blocks: list[Any]) -> list[Any]:
    """A norm has no variance of one example, so how data happen to divide must not leave one over."""
    if len(blocks) < 2 or batches.length(blocks[-1]) > 1:
        return blocks
    joined = pytree.tree_map(lambda a, b: torch.cat([a, b]), blocks[-2], blocks[-1])
    return [*blocks[:-2], joined]
