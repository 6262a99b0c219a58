"""Random-walk Metropolis (Metropolis et al., 1953), adapted while it warms up (Haario et al., 2001)."""

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
from .leapfrog import energy_change
from .sampler import Sampler

OF_ONE, OF_MANY = 0.44, 0.234  # the acceptances at which a random walk goes furthest (Roberts & Rosenthal, 2001)
WIDTH = 2.38  # deviations of a normal posterior, over √P: the proposal that those acceptances belong to


@dataclass(frozen=True, kw_only=True)
class Metropolis(Sampler):
    """Propose a point at random nearby, and go there with min(1, p(w', D) / p(w, D)).

    w' = w + s Σ^½ ξ,  ξ ~ N(0, I)

    It needs no slope. Σ is learned in doubling windows of warm-up: a whole covariance where the unknowns are few, else
    its diagonal.

    Args:
        scale: s; None adapts it to an acceptance of 0.234, or 0.44 of a single unknown.
        warmup: Steps of adaptation, which are not kept.
        thin: Keep every so many-th draw.
    """

    search: ClassVar[Search] = SINGLE_STEPS

    scale: float | None = None
    warmup: int | None = None
    thin: int = 1
    covariance: str = field(default="diagonal", repr=False)  # found by `resolved`
    unknowns: int = field(default=2, repr=False)  # as well

    def __post_init__(self):
        require(self.scale is None or 0 < self.scale < math.inf, f"scale must be positive and finite, got {self.scale}")
        self.check_course()

    @property
    def given_step(self) -> float | None:
        """As told."""
        return self.scale

    @property
    def target(self) -> float:
        """The most efficient acceptance."""
        return OF_ONE if self.unknowns == 1 else OF_MANY

    @property
    def kind(self) -> str:
        """What covariance is learned."""
        return self.covariance

    def first_step(self, unknowns: int) -> float:
        """What a standard normal wants."""
        return WIDTH * unknowns**-0.5

    def prepared(self, model: Any, state: dict[str, Any], batch: Any) -> dict[str, Any]:
        """The log joint where the chain starts; a slope may be missing there."""
        return {**state, "log_joint": model.value(state["params"], batch)}

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Propose, then accept or stay."""
        here, scale = to_vector(state["params"]), self.step_size_now(state, rng.step)
        there = here + self.mass_rule.outward(state["mass"], scale * rng.normal_like(here))
        proposed = model.value(from_vector(there, model.start), batch)
        change = energy_change(proposed, state["log_joint"])
        accepted = rng.uniform(dtype=change.dtype).log() < change
        acceptance = change.clamp(max=0.0).exp()
        point = torch.where(accepted, there, here)
        log_joint = torch.where(accepted, proposed, state["log_joint"])
        state = {
            "params": from_vector(point, model.start),
            "log_joint": log_joint,
            "slope": state["slope"],
            "noted": {"log_joint": log_joint.clone(), "acceptance": acceptance},
            **self.learned(state, point, acceptance, rng.step),
        }
        return state, {"log_joint": log_joint.clone(), "acceptance": acceptance.clone(), "step_size": scale}
