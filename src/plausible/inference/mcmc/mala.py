"""The Metropolis-adjusted Langevin algorithm (Roberts & Tweedie, 1996; scaled as by Roberts & Rosenthal, 1998)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.method import require
from ...weights.algebra import from_vector, to_vector
from ...weights.rng import Keys
from .adaptation import SINGLE_STEPS, Search
from .leapfrog import Phase, energy_change, leapfrog
from .sampler import Sampler

MOST_EFFICIENT = 0.574  # the acceptance at which a step goes furthest in many dimensions


@dataclass(frozen=True, kw_only=True)
class MALA(Sampler):
    """One step uphill with noise, accepted or rejected so that the posterior stays what it is.

    w' = w + ε²/2 Σ ∇ log p(w, D) + ε Σ^½ ξ,  ξ ~ N(0, I)

    This is one leapfrog with a fresh momentum, and its energy error is the Metropolis-Hastings ratio of the proposal.
    Σ is learned in doubling windows of warm-up: where the unknowns are few a whole covariance, from the draws and the slopes
    at them, else a diagonal from the draws.

    Args:
        step_size: ε; None adapts it to an acceptance of 0.574.
        warmup: Steps of adaptation, which are not kept.
        thin: Keep every so many-th draw.
    """

    search: ClassVar[Search] = SINGLE_STEPS
    dense: ClassVar[str] = "sloped"

    step_size: float | None = None
    warmup: int | None = None
    thin: int = 1
    covariance: str = field(default="diagonal", repr=False)  # found by `resolved`

    def __post_init__(self):
        require(
            self.step_size is None or 0 < self.step_size < math.inf,
            f"step_size must be positive and finite, got {self.step_size}",
        )
        self.check_course()

    @property
    def given_step(self) -> float | None:
        """As told."""
        return self.step_size

    @property
    def target(self) -> float:
        """The most efficient acceptance."""
        return MOST_EFFICIENT

    @property
    def kind(self) -> str:
        """What covariance is learned."""
        return self.covariance

    def first_step(self, unknowns: int) -> float:
        """How it shrinks in many dimensions."""
        return unknowns ** (-1 / 6)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Propose, then accept or stay."""
        point, step_size = to_vector(state["params"]), self.step_size_now(state, rng.step)
        here = Phase(point, rng.normal_like(point), state["slope"], state["log_joint"])
        there = leapfrog(model, self.mass_rule, state["mass"], here[:3], step_size, batch)
        change = energy_change(there.energy, here.energy)
        accepted = rng.uniform(dtype=change.dtype).log() < change
        acceptance = change.clamp(max=0.0).exp()
        point = torch.where(accepted, there.point, here.point)
        log_joint = torch.where(accepted, there.log_joint, here.log_joint)
        slope = torch.where(accepted, there.slope, here.slope)
        state = {
            "params": from_vector(point, model.start),
            "log_joint": log_joint,
            "slope": slope,
            "noted": {"log_joint": log_joint.clone(), "acceptance": acceptance},
            **self.learned(state, point, acceptance, rng.step, slope),
        }
        return state, {"log_joint": log_joint.clone(), "acceptance": acceptance.clone(), "step_size": step_size}
