"""Stochastic gradient Langevin dynamics (Welling & Teh, 2011), and preconditioned (Li et al., 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.schedules import Constant
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Number, Weights, add_, average_, scale_, square
from ...weights.rng import Keys
from .stochastic_gradient import StochasticGradientSampler, data_scale, deviation, noted, nothing_noted

DECAY, OFFSET = 0.99, 1e-5  # Li et al.'s α and λ


def langevin_(params: Weights, slope: Weights, noise: Weights, epsilon: Number, variance: Number) -> None:
    """w ← w + ε ∇̃ log p(w, D) + √variance ξ, in place."""
    add_(params, slope, epsilon)
    add_(params, noise, deviation(variance))


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradientSampler):
    """Climb the log joint and add the noise that makes exp(log joint) the stationary density.

    w ← w + ε ∇̃ log p(w, D) + √(2ε) ξ,   ξ ~ N(0, I)      (ε is half of the paper's step size)

    preconditioned:  V ← α V + (1 − α) ḡ²,  G = 1 / (λ + √V̂),  w ← w + ε G ∇̃ log p(w, D) + √(2ε G) ξ

    ∇̃ is the gradient of the whole data's log joint, estimated by a batch, and ḡ is the same divided by N / T. V̂ is V without
    its pull to the zero it starts from, as in Adam. Li et al.'s term Γ, the change of G with w, is dropped, as they propose. That
    is exact where ḡ is mostly the batch's noise, as in large networks, so that G hardly changes with w; where it is not, wide
    directions come out too wide, up to twice the variance of a normal.

    Args:
        step_size: ε. None is K^(−1/3) T / N for K steps, and at most a tenth of T / N: bias and variance of K steps are then
            of one order (Teh, Thiery & Vollmer, 2016). A hundredth of that with the preconditioner.
        burn_in: Steps before the first draw.
        thin: Keep every so many-th draw.
        preconditioned: Whether coordinates have step sizes of their own.
        schedule: The multiple of ε in the course of the run: a name or a function of progress in [0, 1), as in `MAP`.
            Draws count alike however long their steps.
        gradient_noise: Variance V that the gradient is known to have of its own; the noise put in has 2ε − ε² V.
    """

    preconditioned: bool = False
    schedule: Any = "constant"

    def __post_init__(self):
        super().__post_init__()
        find_schedule(self.schedule)

    def with_step_size(self, model: Any, num_steps: int) -> Self:
        """ε from N and K."""
        if self.step_size is not None:
            return self
        rate = min(0.1, max(1, num_steps) ** (-1 / 3)) * (0.01 if self.preconditioned else 1.0)
        return replace(self, step_size=rate / data_scale(model))

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The point, and the squares of its gradients."""
        state: dict[str, Any] = {"params": params, "noted": nothing_noted(params)}
        if self.preconditioned:
            state["squares"] = {k: torch.zeros_like(w) for k, w in params.items()}
        return state

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update at the size that the schedule says."""
        course = find_schedule(self.schedule)
        if isinstance(course, Constant):
            return self.moved(model, state, batch, rng, 1.0, 1.0)
        return self.moved(model, state, batch, rng, course(rng.step.double() / model.num_steps), 1.0)

    def moved(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys, multiple: Number, heat: Number
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        assert self.step_size is not None  # `resolved` has made it a number
        epsilon = self.step_size * multiple
        log_joint, slope = model.slope(state["params"], batch)
        state["noted"] = noted(log_joint, state["params"], slope)
        noise = rng.normal_like(state["params"])
        if self.preconditioned:
            self._preconditioned(model, state, slope, noise, epsilon, heat, rng)
        else:
            langevin_(state["params"], slope, noise, epsilon, heat * (2 * epsilon - epsilon**2 * self.gradient_noise))
        return state, {"log_joint": log_joint}

    def _preconditioned(
        self,
        model: Any,
        state: dict[str, Any],
        slope: Weights,
        noise: Weights,
        epsilon: Number,
        heat: Number,
        rng: Keys,
    ) -> None:
        average_(state["squares"], scale_(square(slope), data_scale(model) ** -2), DECAY)
        seen = -torch.expm1((rng.step.double() + 1) * math.log(DECAY))  # 1 − αᵗ
        for k, w in state["params"].items():
            size = epsilon / ((state["squares"][k] / seen.to(w.dtype)).sqrt() + OFFSET)
            variance = 2 * size - size**2 * self.gradient_noise
            w += (size * slope[k] + (variance.clamp(min=0.0) * heat).sqrt() * noise[k]).to(w.dtype)
