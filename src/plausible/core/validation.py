"""The validation loss during a run: of the average over the modes' current points."""

from __future__ import annotations

import math

import torch

from ..weights.rng import forked
from .execution import Execution
from .model import BayesianModel
from .refresh import EXAMPLES, statistics_of
from .source import Source


def validation_nll(execution: Execution, validation: Source, training: Source) -> float:
    """Mean negative log likelihood of the equal mixture of the current points; leaves the run's state alone."""
    model = execution.model
    assert isinstance(model, BayesianModel)
    quiet = model.bound(training=False, rng=None, inline=False)
    points = [execution.state(m)["params"] for m in range(execution.modes)]
    banks = [execution.mode_buffers(m) for m in range(execution.modes)]
    if model.network.statistics:
        blocks = list(training.some_inputs(EXAMPLES))
        banks = [{**(b or {}), **statistics_of(model, p, blocks)} for b, p in zip(banks, points, strict=True)]
    total, count = 0.0, 0.0
    with torch.no_grad(), forked(0x76616C, devices=[execution.device]):  # a network that draws leaves no trace
        for step in range(validation.steps_per_epoch):
            batch = validation.batch(step)
            assert batch is not None
            real = batch[2] > 0
            rows = [
                quiet.bound(buffers=b)._weighted_log_likelihoods(p, (batch[0], batch[1], None))
                for p, b in zip(points, banks, strict=True)
            ]
            mixed = torch.logsumexp(torch.stack(rows), 0) - math.log(len(rows))
            total -= float(mixed[real].sum())
            count += int(real.sum())
    return total / count
