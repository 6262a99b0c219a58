"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin, 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.method import require
from ...weights.algebra import Number, Weights, add_, dot, scale_, size
from ...weights.rng import Keys
from .stochastic_gradient import StochasticGradientSampler, data_scale, deviation, noted, nothing_noted
from .variance_reduction import NAMES, reduction

DECAY = 0.1  # D h for friction=None, as a momentum of 0.9


def hamiltonian_(
    params: Weights, momentum: Weights, slope: Weights, noise: Weights, h: Number, decay: float, variance: Number
) -> None:
    """p ← (1 − D h) p + h ∇̃ log p(w, D) + √variance ξ and then w ← w + h p, in place; `decay` is D h."""
    scale_(momentum, 1 - decay)
    add_(momentum, slope, h)
    add_(momentum, noise, deviation(variance))
    add_(params, momentum, h)


@dataclass(frozen=True, kw_only=True)
class SGHMC(StochasticGradientSampler):
    """A particle with friction in the potential −log p(w, D), kept warm by noise.

    p ← (1 − D h) p + h ∇̃ log p(w, D) + √(2 D h) ξ,   w ← w + h p,   ξ ~ N(0, I)

    The same as SGD with the momentum 1 − D h and the learning rate h² N on the mean loss, and noise. Its stationary density is
    exp(log joint) times that of p ~ N(0, I), but for the error of finite steps.

    Args:
        step_size: h. None is 2 K^(−1/3) √(T / N) for K steps, and at most a fifth of √(T / N).
        friction: D. None is a tenth of 1 / h.
        burn_in: Steps before the first draw.
        thin: Keep every so many-th draw.
        variance_reduction: "svrg" or "saga" take a gradient that is less noisy near a place seen before, for more work; see
            `variance_reduction.py`.
        snapshot_every: Steps between SVRG's sweeps over the data. None is an epoch.
        gradient_noise: Variance V that the gradient is known to have of its own; the noise put in has 2 D h − h² V.
    """

    friction: float | None = None
    variance_reduction: str | None = None
    snapshot_every: int | None = None

    def __post_init__(self):
        super().__post_init__()
        require(self.friction is None or self.friction > 0, f"friction must be positive, got {self.friction}")
        if self.friction is not None and self.step_size is not None:
            self._refuse_overdamped()
        require(
            self.variance_reduction in NAMES,
            f'variance_reduction must be None, "svrg" or "saga", got {self.variance_reduction!r}',
        )
        every = self.snapshot_every
        require(
            every is None or isinstance(every, int) and every >= 1,
            f"snapshot_every must be a positive integer, got {every}",
        )

    def _refuse_overdamped(self) -> None:
        assert self.friction is not None and self.step_size is not None
        require(
            self.friction * self.step_size <= 1,
            f"friction · step_size must not exceed 1, where no momentum is left, got {self.friction} · {self.step_size}; "
            "lower one of them",
        )

    def with_step_size(self, model: Any, num_steps: int) -> Self:
        """h and D from N and K, and how often a snapshot is taken."""
        h = self.step_size or min(0.2, 2 * max(1, num_steps) ** (-1 / 3)) * data_scale(model) ** -0.5
        friction = self.friction or DECAY / h
        every = self.snapshot_every or model.steps_per_epoch
        found = replace(self, step_size=h, friction=friction, snapshot_every=every)
        found._refuse_overdamped()
        return found

    # --- what variance reduction needs ---

    @property
    def fixed_batches(self) -> bool:
        """SAGA remembers a gradient for every batch."""
        return reduction(self.variance_reduction).fixed_batches

    def swept_steps(self, num_steps: int) -> Sequence[int]:
        """When the data are seen as a whole."""
        return reduction(self.variance_reduction).swept_steps(num_steps, self.snapshot_every or 1)

    def gather(self, model: Any, state: dict[str, Any], batch: Any, first: bool) -> dict[str, Any]:
        """See a part of the data during a sweep."""
        memory = reduction(self.variance_reduction).gather(model, state["memory"], state["params"], batch, first)
        return {**state, "memory": memory}

    # --- the method ---

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The point, at rest."""
        state: dict[str, Any] = {
            "params": params,
            "momentum": {k: torch.zeros_like(w) for k, w in params.items()},
            "noted": nothing_noted(params),
        }
        memory = reduction(self.variance_reduction).init(model, params)
        return {**state, "memory": memory} if memory else state  # a file has no empty dictionaries

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        return self.moved(model, state, batch, rng, 1.0, 1.0)

    def moved(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys, multiple: Number, heat: Number
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update. `multiple` is of the learning rate h²; the momentum 1 − D h stays, and p needs no change of scale."""
        assert self.step_size is not None and self.friction is not None  # `resolved` has made them numbers
        h, decay = self.step_size * multiple**0.5, self.friction * self.step_size
        memory = state.get("memory", {})
        log_joint, slope = reduction(self.variance_reduction).slope(model, memory, state["params"], batch)
        state["noted"] = noted(log_joint, state["params"], slope)
        noise = rng.normal_like(state["momentum"])
        variance = heat * (2 * decay - h**2 * self.gradient_noise)
        hamiltonian_(state["params"], state["momentum"], slope, noise, h, decay, variance)
        return state, {"log_joint": log_joint}

    def thermometers(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """The kinetic temperature too."""
        warmth = dot(state["momentum"], state["momentum"]) * (1.0 / size(state["momentum"]))
        return {**state["noted"], "kinetic_temperature": warmth}
