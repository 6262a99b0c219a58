"""What samplers of all data share: warm-up in windows, thinning, and the draws that they keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Samples
from ...weights.algebra import Weights, size, to_vector
from .adaptation import TRAJECTORIES, Search, restart, tuned, windows
from .kept_draws import kept_draws
from .mass import Identity, make_mass

FEW_UNKNOWNS = 64  # up to which a chain without trajectories learns a whole covariance
BETWEEN_DRAWS = ("energy_jumps", "energy_mean", "energy_spread", "energy_count")
MASSES = ("diagonal", "full", "identity")


class Sampler(Method):
    """A Markov chain on all data that finds its step size and its mass while it warms up.

    The state holds the point ("params") with its log joint and its slope in the coordinates of the mass, so that no
    transition computes them again.
    """

    full_batch: ClassVar[bool] = True
    trains: ClassVar[bool] = False
    search: ClassVar[Search] = TRAJECTORIES
    dense: ClassVar[str] = "blended"  # the mass that a chain without trajectories learns of few unknowns

    warmup: int | None
    thin: int

    # --- what a sampler says of itself ---

    @property
    @abstractmethod
    def given_step(self) -> float | Tensor | None:
        """The step size that is told; None if it is to be found."""

    @property
    @abstractmethod
    def target(self) -> float:
        """The acceptance at which the step size is right."""

    @abstractmethod
    def first_step(self, unknowns: int) -> float:
        """A step size to begin the search with."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of its mass."""

    # --- when ---

    def check_course(self) -> None:
        """Refuse a warm-up or a thinning that cannot be."""
        require(self.warmup is None or self.warmup >= 0, f"warmup must not be negative, got {self.warmup}")
        require(isinstance(self.thin, int) and self.thin >= 1, f"thin must be a positive integer, got {self.thin}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Warm-up, and thinning where the draws would not fit."""
        warmup, thin = kept_draws(model, num_steps, self.warmup, self.thin, "warm-up")
        unknowns = size(model.start)
        found = {"covariance": self.dense if unknowns <= FEW_UNKNOWNS else "diagonal", "unknowns": unknowns}
        own = {k: v for k, v in found.items() if k in {f.name for f in fields(self)}}
        return replace(self, warmup=warmup, thin=thin, **own)  # type: ignore[call-arg]

    @property
    def warm_up(self) -> int:
        """Its length, which `resolved` has made a number."""
        return self.warmup or 0

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """Every thin-th step after warm-up."""
        return range(self.warm_up + self.thin - 1, num_steps, self.thin)

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """The ends of the windows."""
        return windows(self.warm_up)

    # --- the state ---

    @property
    def mass_rule(self) -> Identity:
        """How its mass works."""
        return make_mass(self.kind)

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The point, the mass, and what adaptation remembers."""
        vector = to_vector(params)
        start = self.first_step(vector.numel()) if self.given_step is None else self.given_step
        zero = torch.zeros((), dtype=vector.dtype, device=vector.device)
        return {
            "params": params,
            "log_joint": zero,
            "slope": torch.zeros_like(vector),
            "mass": self.mass_rule.init(vector),
            "tuning": restart((zero + start).log(), self.search.above),
            "noted": {name: zero.clone() for name in self.noted_names},
        }

    @property
    def noted_names(self) -> tuple[str, ...]:
        """What is noted beside every draw."""
        return ("log_joint", "acceptance")

    def since_kept(self, name: str, now: Tensor, state: dict[str, Any], step: Tensor) -> Tensor:
        """A count of a step's, added up over the steps since the last draw that was kept: thinning hides none of it."""
        return torch.where((step - self.warm_up) % self.thin == 0, now, state["noted"][name] + now)

    @property
    def energy_names(self) -> tuple[str, ...]:
        """What is noted of energies: beside that of the draw, the steps that thinning hides."""
        return ("energy",) if self.thin == 1 else ("energy", *BETWEEN_DRAWS)

    def energy_noted(self, energy: Tensor, state: dict[str, Any], step: Tensor) -> dict[str, Tensor]:
        """The energy of this step's draw; where draws are thinned also the moments of all since the last that was kept."""
        if self.thin == 1:
            return {"energy": energy}
        before, done = state["noted"], step - self.warm_up
        count = done % self.thin + 1
        mean = torch.where(count == 1, energy, before["energy_mean"] + (energy - before["energy_mean"]) / count)
        spread = before["energy_spread"] + (energy - before["energy_mean"]) * (energy - mean)
        jump = torch.where(done == 0, 0.0, (energy - before["energy"]) ** 2)  # warm-up's last draw is no draw
        return {
            "energy": energy,
            "energy_jumps": self.since_kept("energy_jumps", jump, state, step),
            "energy_mean": mean,
            "energy_spread": torch.where(count == 1, 0.0, spread),
            "energy_count": count.to(energy.dtype),
        }

    def prepared(self, model: Any, state: dict[str, Any], batch: Any) -> dict[str, Any]:
        """The log joint and the slope where the chain starts."""
        log_joint, slope = model.slope(state["params"], batch)
        return {**state, "log_joint": log_joint, "slope": self.mass_rule.inward(state["mass"], to_vector(slope))}

    def step_size_now(self, state: dict[str, Any], step: Tensor) -> Tensor:
        """What is told, or the search's last one while it lasts and then its average."""
        if self.given_step is not None:
            return torch.zeros_like(state["log_joint"]) + self.given_step
        tuning = state["tuning"]
        return torch.where(step < self.warm_up, tuning["log_step"], tuning["log_mean_step"]).exp()

    def settled(self, step: Tensor) -> Tensor:
        """Whether the chain has arrived: the way from the start is no part of the posterior's width."""
        return step >= min(75, self.warm_up // 6)

    def learned(
        self, state: dict[str, Any], point: Tensor, acceptance: Tensor, step: Tensor, slope: Tensor | None = None
    ) -> dict[str, Any]:
        """The mass's and the step size's memory after a transition, which warm-up alone changes."""
        warm = step < self.warm_up
        return {
            "mass": self.mass_rule.observed(state["mass"], point, warm & self.settled(step), slope),
            "tuning": tuned(state["tuning"], acceptance, self.target, warm, self.search),
        }

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """At the end of a window the draws' covariance becomes the inverse mass, and the step size is sought anew."""
        if step not in windows(self.warm_up) or self.kind == "identity":
            return state
        rule = self.mass_rule
        mass = rule.renewed(state["mass"])
        slope = rule.inward(mass, rule.inward_inverse(state["mass"], state["slope"]))
        return {
            **state,
            "mass": mass,
            "slope": slope,
            "tuning": restart(state["tuning"]["log_step"], self.search.again),
        }

    # --- the draws ---

    def keep(self, model: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The draw and what was noted of it."""
        return {"params": state["params"], "statistics": state["noted"]}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Samples:
        """The kept draws."""
        require(draws is not None, "no draw was kept; run more steps")
        return Samples(model, draws["params"], draws["statistics"])
