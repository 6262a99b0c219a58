"""Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011) with dual averaging (Hoffman & Gelman, 2014)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Trajectory, require
from ...weights.algebra import Weights, from_vector, size, to_vector
from ...weights.rng import Keys
from .adaptation import windows
from .leapfrog import DIVERGENT, Phase, energy_change, leapfrog
from .sampler import MASSES, Sampler

DEFAULT_LENGTH = math.pi / 2  # a quarter period of a standard normal, which the adapted mass makes of the posterior
# Before there is a mass, steps are tiny; but a mass learned from draws that have hardly moved is worse than none. The more
# unknowns there are, the more their scales differ: of hundreds a mass learned by 16 leapfrogs a draw was useless.
FEWEST_BEFORE_MASS, MOST_BEFORE_MASS, MOST_LEAPFROGS, MOST_EVER = 32, 128, 512, 4096
SOON = (5, 10, 20, 40, 70)  # steps of a search for ε after which it has moved far
JITTER = 0.1  # of the step size, so that no direction resonates with the trajectory


@dataclass(frozen=True, kw_only=True)
class HMC(Sampler, Trajectory):
    """Simulate a particle in the potential −log p(w, D) and accept its end by the energy error.

    p ~ N(0, M);  L leapfrogs p ← p + ε/2 ∇, w ← w + ε M⁻¹ p, p ← p + ε/2 ∇;  accept with min(1, exp(H − H')).

    During warm-up dual averaging finds ε for the target acceptance, and M⁻¹ becomes the draws' variance at the end of
    doubling windows, as in Stan. ε is jittered by a tenth at every transition.

    Args:
        step_size: ε; None adapts it.
        trajectory_length: L ε; None is a quarter period of a standard normal, with at most 512 leapfrogs. With an adapted ε
            there are at most 512 leapfrogs while it warms up and 4,096 after.
        mass: "diagonal", "full" or "identity".
        warmup: Steps of adaptation, which are not kept.
        thin: Keep every so many-th draw.
        target_acceptance: What ε is adapted to.
    """

    slopes_per_step: ClassVar[int] = 64

    step_size: float | None = None
    trajectory_length: float | None = None
    mass: str = "diagonal"
    warmup: int | None = None
    thin: int = 1
    target_acceptance: float = 0.8
    leapfrogs: int = field(default=1, repr=False)  # L of the mode that needs most; found by `replanned`

    def __post_init__(self):
        step, length = self.step_size, self.trajectory_length
        require(step is None or 0 < step < math.inf, f"step_size must be positive and finite, got {step}")
        require(length is None or 0 < length < math.inf, f"trajectory_length must be positive and finite, got {length}")
        require(self.mass in MASSES, f'mass must be "diagonal", "full" or "identity", got {self.mass!r}')
        require(0 < self.target_acceptance < 1, f"target_acceptance must lie in (0, 1), got {self.target_acceptance}")
        self.check_course()

    @property
    def given_step(self) -> float | None:
        """As told."""
        return self.step_size

    @property
    def target(self) -> float:
        """As told."""
        return self.target_acceptance

    @property
    def kind(self) -> str:
        """As told."""
        return self.mass

    @property
    def noted_names(self) -> tuple[str, ...]:
        """What is noted beside every draw."""
        return ("log_joint", "acceptance", "divergent", *self.energy_names)

    def first_step(self, unknowns: int) -> float:
        """Small for any posterior that is not very narrow."""
        return 0.1 * unknowns**-0.25

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """At the ends of the windows and when warm-up ends, and for the number of leapfrogs soon after a search begins."""
        if not self.warm_up:
            return ()
        ends = windows(self.warm_up)
        soon = (begin + s for begin in (-1, *ends) for s in SOON)
        return sorted({*(s for s in soon if s < self.warm_up), *ends, self.warm_up - 1})

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """A sampler's state, and how many leapfrogs a trajectory takes."""
        state = super().init(model, params)
        adapted = not windows(self.warm_up) or self.mass == "identity"
        return {**state, "leapfrogs": self._needed(state, adapted, step=-1)}

    @property
    def num_moves(self) -> int:
        """Leapfrogs of the mode that needs most."""
        return self.leapfrogs

    def begin(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """Draw a momentum."""
        step_size = self.step_size_now(state, rng.step)
        point = to_vector(state["params"])
        here = Phase(point, rng.normal_like(point), state["slope"], state["log_joint"])
        return {
            **here._asdict(),
            "mass": state["mass"],
            "step_size": step_size * (1 + JITTER * (2 * rng.uniform(dtype=step_size.dtype) - 1)),
            "left": state["leapfrogs"],
            "energy": here.energy,
        }

    def move(self, model: Any, walk: dict[str, Any], batch: Any) -> dict[str, Any]:
        """One leapfrog."""
        # A mode that needs fewer than the longest stands still for the rest: a step of zero changes no bit.
        epsilon = walk["step_size"] * (walk["left"] > 0)
        at = (walk["point"], walk["momentum"], walk["slope"])
        moved = leapfrog(model, self.mass_rule, walk["mass"], at, epsilon, batch)
        return {**walk, **moved._asdict(), "left": walk["left"] - 1}

    def end(
        self, model: Any, state: dict[str, Any], walk: dict[str, Any], rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Accept or stay, and learn from it while warming up."""
        there = Phase(*(walk[name] for name in Phase._fields))
        change = energy_change(there.energy, walk["energy"])
        acceptance = change.clamp(max=0.0).exp()
        accepted = rng.uniform(dtype=acceptance.dtype).log() < change
        point = torch.where(accepted, there.point, to_vector(state["params"]))
        log_joint = torch.where(accepted, there.log_joint, state["log_joint"])
        noted = {
            "log_joint": log_joint,
            "acceptance": acceptance,
            "divergent": self.since_kept("divergent", (change < -DIVERGENT).to(change.dtype), state, rng.step),
            **self.energy_noted(-torch.where(accepted, there.energy, walk["energy"]), state, rng.step),
        }
        state = {
            "params": from_vector(point, model.start),
            "log_joint": log_joint.clone(),
            "slope": torch.where(accepted, there.slope, state["slope"]),
            "leapfrogs": state["leapfrogs"],
            "noted": noted,
            **self.learned(state, point, acceptance, rng.step),
        }
        shown = {"log_joint": log_joint, "acceptance": acceptance, "step_size": walk["step_size"]}
        return state, {**shown, "leapfrogs": state["leapfrogs"]}

    def _needed(self, state: dict[str, Any], adapted: bool, step: int) -> Tensor:
        """How many leapfrogs the trajectory takes at the step size after `step`."""
        step_size = self.step_size_now(state, torch.full_like(state["log_joint"], float(step + 1)))
        if not adapted:  # warm-up draws are not worth the longest trajectories
            length = DEFAULT_LENGTH if self.trajectory_length is None else self.trajectory_length
            most = min(MOST_BEFORE_MASS, max(FEWEST_BEFORE_MASS, size(state["params"]) // 4))
            return (length / step_size).ceil().clamp(1.0, float(most))
        if self.trajectory_length is not None:
            needed = (self.trajectory_length / step_size).round().clamp(min=1.0)
            if self.step_size is not None:
                return needed
            # A search that nothing is accepted in makes its steps smaller and smaller: its trajectories must end all the same.
            return needed.clamp(max=MOST_LEAPFROGS if step + 1 < self.warm_up else MOST_EVER)
        return (DEFAULT_LENGTH / step_size).ceil().clamp(1.0, MOST_LEAPFROGS)

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """What every sampler adapts, and the number of leapfrogs that follows from it."""
        state, ends = super().adapt(model, state, step), windows(self.warm_up)
        adapted = self.mass == "identity" or not ends or step >= ends[0]
        return {**state, "leapfrogs": self._needed(state, adapted, step)}

    def replanned(self, state: dict[str, Any]) -> Self:
        """Loop as long as the mode that needs most leapfrogs."""
        return replace(self, leapfrogs=int(state["leapfrogs"].max()))
