"""Temperature scaling (Guo et al., 2017): one number, fitted on held-out examples, that softens every prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.posteriors import Posterior
from ..core.predictive import Predictive
from ..weights.rng import generator

VALIDATION_SHARE = 0.2  # of the training part
COLDEST, HOTTEST = 0.05, 20.0
GOLDEN = (math.sqrt(5) - 1) / 2
HALVINGS = 40  # each narrows the bracket by the golden ratio: 40 leave 5e-9 of it


@dataclass(frozen=True, kw_only=True)
class TemperatureScaled:
    """A posterior whose logits are divided by a temperature; it predicts like any other.

    Attributes:
        posterior: What is scaled.
        temperature: What its logits are divided by.
    """

    posterior: Posterior
    temperature: float

    def predict(self, x: Any) -> Predictive:
        """The prediction with softened probabilities."""
        hot = self.posterior.predict(x)
        return Predictive(
            hot.outputs / self.temperature, hot.likelihood, hot.weights, hot.unknowns, hot.strata, hot.exact
        )


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The temperature whose NLL on these examples is least, by golden section: the NLL has one valley in log T.

    The labels are smoothed by 1 / (n + 2) as in Platt (1999): n right answers out of n would ask for T = 0.
    """
    logits = logits.detach().double()
    smoothing = 1 / (len(y) + 2)

    def loss(log_temperature: float) -> float:
        return float(cross_entropy(logits / math.exp(log_temperature), y, label_smoothing=smoothing))

    low, high = math.log(COLDEST), math.log(HOTTEST)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(HALVINGS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def held_out(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the examples to train on and of those to fit the temperature on."""
    order = torch.randperm(count, generator=generator(seed))
    split = max(1, round(VALIDATION_SHARE * count))
    return order[split:], order[:split]
