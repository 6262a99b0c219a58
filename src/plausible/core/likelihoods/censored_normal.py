"""Normal noise seen through an instrument with limits (Tobin, 1958)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plausible.core.errors import require_finite as require_finite_number
from plausible.core.hyperpriors import Hyperprior
from plausible.core.likelihoods.distributions import TruncatedNormal
from plausible.core.likelihoods.heteroscedastic_normal import mean_and_scale, require_one_mean_per_target
from plausible.core.likelihoods.likelihood import (
    Likelihood,
    first,
    require_finite,
    require_one_shape,
    sum_over_example,
)
from plausible.core.likelihoods.noise_scale import settle, tensor_like
from plausible.core.log_densities import log_ndtr, log_ndtr_difference, log_normal
from plausible.core.unknowns import known


@dataclass(frozen=True)
class CensoredNormal(Likelihood):
    """A normal quantity of which values past a limit are recorded only as being past it.

    log p(y) = log P(quantity ≤ lower)   where y ≤ lower
               log P(quantity ≥ upper)   where y ≥ upper
               log N(y; mean, scale²)    between
    each less log P(quantity > truncate_below), if quantities below were never recorded at all.

    ``distribution`` is that of the quantity itself: truncated where it is, and never censored.

    Args:
        scale: As in ``Normal``; None for a network that predicts it, with outputs as in ``HeteroscedasticNormal``.
        lower: The limit at or below which y is censored.
        upper: The limit at or above which y is censored.
        truncate_below: The value below which nothing can be.
    """

    task: ClassVar[Literal["classification", "regression"]] = "regression"
    scale: float | Tensor | Hyperprior | Literal["learn"] | None = None
    lower: float | None = None
    upper: float | None = None
    truncate_below: float | None = None

    def __post_init__(self):
        if self.scale is not None:
            settle(self, "scale")
        limits = {name: getattr(self, name) for name in ("truncate_below", "lower", "upper")}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        for name, limit in given.items():
            require_finite_number(name, limit)
        if list(given.values()) != sorted(set(given.values())):
            listed = ", ".join(f"{name}={limit}" for name, limit in given.items())
            raise ValueError(
                f"limits must satisfy truncate_below < lower < upper, got {listed}; leave out what is not there"
            )

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, scale = self._mean_and_scale(outputs)
        self._require_shapes(outputs, mean, y)
        below = torch.zeros_like(y, dtype=torch.bool) if self.lower is None else y <= self.lower
        above = torch.zeros_like(y, dtype=torch.bool) if self.upper is None else y >= self.upper
        # A branch that is not used is given residual zero: where() alone would let its overflow into the gradient.
        values = log_normal((y - mean).masked_fill(below | above, 0), scale)
        if self.lower is not None:
            values = torch.where(below, self._log_prob_below(self.lower, below, mean, scale), values)
        if self.upper is not None:
            values = torch.where(above, log_ndtr(((mean - self.upper) / scale).masked_fill(~above, 0)), values)
        if self.truncate_below is not None:
            values = values - log_ndtr((mean - self.truncate_below) / scale)
            values = values.masked_fill(y < self.truncate_below, -torch.inf)
        return sum_over_example(values)

    def distribution(self, outputs: Tensor) -> torch.distributions.Normal | TruncatedNormal:
        mean, scale = self._mean_and_scale(outputs)
        scale = tensor_like(outputs, scale)
        if self.truncate_below is None:
            return torch.distributions.Normal(mean, scale, validate_args=False)
        return TruncatedNormal(mean, scale, self.truncate_below, validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        self._require_shapes(outputs, self._mean_and_scale(outputs)[0], y)
        require_finite(y)
        if self.truncate_below is not None and (wrong := y < self.truncate_below).any():
            raise ValueError(
                f"targets must not be below truncate_below={self.truncate_below}, got {first(y, wrong)}; for values "
                f"that were seen as a bound set lower instead"
            )

    def _log_prob_below(self, lower: float, below: Tensor, mean: Tensor, scale: float | Tensor) -> Tensor:
        """log P(truncate_below < quantity ≤ lower), before division by P(quantity > truncate_below)."""
        limit = ((lower - mean) / scale).masked_fill(~below, 0)
        if self.truncate_below is None:
            return log_ndtr(limit)
        floor = ((self.truncate_below - mean) / scale).masked_fill(~below, -1)
        return log_ndtr_difference(floor, limit)

    def _mean_and_scale(self, outputs: Tensor) -> tuple[Tensor, float | Tensor]:
        return mean_and_scale(outputs) if self.scale is None else (outputs, known(self, "scale"))

    def _require_shapes(self, outputs: Tensor, mean: Tensor, y: Tensor) -> None:
        if self.scale is None:
            require_one_mean_per_target(outputs, mean, y)
        else:
            require_one_shape(outputs, y)
