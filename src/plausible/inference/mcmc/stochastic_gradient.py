"""What the samplers share that follow gradients of minibatches and accept every step: when draws are kept, and thermometers.

A sampler has the stationary density exp(log joint) as the model gives it, in which the model's temperature is contained
already. Two averages under that density are known whatever it is, so they are noted beside every draw: of −w·∇ log joint / d
(the configurational temperature) and, where there is a momentum, of p·p / d (the kinetic one). Both are 1, in units of the
model's temperature, where steps are small and the gradient's own noise is small beside the noise that is put in.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Samples
from ...weights.algebra import Number, Weights, dot, size
from ...weights.rng import Keys
from .kept_draws import kept_draws


@dataclass(frozen=True, kw_only=True)
class StochasticGradientSampler(Method):
    """A chain of noisy gradient steps; the fields are those that every such sampler has.

    Attributes:
        step_size: On the scale of the whole data's log joint.
        burn_in: Steps before the first draw.
        thin: Keep every so many-th draw.
        gradient_noise: Variance that the gradient is known to have of its own in every coordinate; the noise that is put
            in is so much less.
    """

    step_size: float | None = None
    burn_in: int | None = None
    thin: int = 1
    gradient_noise: float = 0.0

    def __post_init__(self):
        size, burn_in = self.step_size, self.burn_in
        require(size is None or 0 < size < math.inf, f"step_size must be positive and finite, got {size}")
        require(
            burn_in is None or isinstance(burn_in, int) and burn_in >= 0,
            f"burn_in must be a whole number of steps, zero or more, got {burn_in}",
        )
        require(isinstance(self.thin, int) and self.thin >= 1, f"thin must be a positive integer, got {self.thin}")
        require(self.gradient_noise >= 0, f"gradient_noise must not be negative, got {self.gradient_noise}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Step size and burn-in, and thinning where the draws would not fit."""
        burn_in, thin = kept_draws(model, num_steps, self.burn_in, self.thin, "burn-in")
        return replace(self.with_step_size(model, num_steps), burn_in=burn_in, thin=thin)

    @abstractmethod
    def with_step_size(self, model: Any, num_steps: int) -> Self:
        """The same sampler with the numbers of its dynamics derived from N and the number of steps."""

    @abstractmethod
    def moved(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys, multiple: Number, heat: Number
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update: `multiple` of the usual step on the gradient, and noise of `heat` times its usual variance."""

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """Every thin-th step after burn-in."""
        return range((self.burn_in or 0) + self.thin - 1, num_steps, self.thin)  # `resolved` has made it a number

    def thermometers(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """What is noted beside a draw."""
        return dict(state["noted"])

    def keep(self, model: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The draw and what was noted of it."""
        return {"params": state["params"], "statistics": self.thermometers(state)}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Samples:
        """The kept draws."""
        require(draws is not None, "no draw was kept; run more steps than burn-in has")
        return Samples(model, draws["params"], draws["statistics"])


def nothing_noted(params: Weights) -> dict[str, Tensor]:
    """Places for what `noted` gives."""
    like = next(iter(params.values()))
    zero = lambda: torch.zeros((), dtype=like.dtype, device=like.device)  # noqa: E731
    return {"log_joint": zero(), "configurational_temperature": zero()}


def noted(log_joint: Tensor, params: Weights, slope: Weights) -> dict[str, Tensor]:
    """Of the point that a step starts from, estimated by its batch."""
    like = next(iter(params.values()))
    warmth = dot(params, slope) * (-1.0 / size(params))
    return {"log_joint": log_joint.to(like.dtype), "configurational_temperature": warmth.to(like.dtype)}


def deviation(variance: Number) -> Number:
    """The square root of a variance; of a negative one (the gradient is noisier than the dynamics ask for), zero."""
    return variance.clamp(min=0.0).sqrt() if isinstance(variance, Tensor) else max(variance, 0.0) ** 0.5


def data_scale(model: Any) -> float:
    """N / T: about how much steeper the log joint is than that of one example."""
    return model.num_data / getattr(model, "temperature", 1.0)
