"""Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011) with dual averaging (Hoffman & Gelman, 2014)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Samples
from ...weights.algebra import Weights, size
from ...weights.rng import Keys
from .adaptation import restart, tuned, windows
from .mass import make_mass

log = logging.getLogger("plausible")

DEFAULT_LENGTH = math.pi / 2  # a quarter period of a standard normal, which the adapted mass makes of the posterior
MOST_LEAPFROGS_BEFORE_MASS, MOST_LEAPFROGS = 16, 512
JITTER = 0.1  # of the step size, so that no direction resonates with the trajectory
DIVERGENT = 1000.0  # an energy error that no accurate trajectory makes
DRAW_BUDGET = 4 * 1024**3  # bytes of kept draws, all modes apart


@dataclass(frozen=True, kw_only=True)
class HMC(Method):
    """Simulate a particle in the potential −log p(w, D) and accept its end by the energy error.

    p ~ N(0, M);  L leapfrogs p ← p + ε/2 ∇, w ← w + ε M⁻¹ p, p ← p + ε/2 ∇;  accept with min(1, exp(H − H')).

    During warm-up dual averaging finds ε for the target acceptance, and M⁻¹ becomes the draws' variance at the end of
    doubling windows, as in Stan. ε is jittered by a tenth at every transition.

    Args:
        step_size: ε; None adapts it.
        trajectory_length: L ε; None is a quarter period of a standard normal, with at most 512 leapfrogs.
        mass: "diagonal", "full" or "identity".
        warmup: Steps of adaptation, which are not kept.
        thin: Keep every so many-th draw.
        target_acceptance: What ε is adapted to.
    """

    full_batch: ClassVar[bool] = True
    trains: ClassVar[bool] = False
    straight: ClassVar[bool] = False
    slopes_per_step: ClassVar[int] = 16

    step_size: float | None = None
    trajectory_length: float | None = None
    mass: str = "diagonal"
    warmup: int | None = None
    thin: int = 1
    target_acceptance: float = 0.8
    leapfrogs: int = field(default=1, repr=False)  # L of the mode that needs most; found by `replanned`

    def __post_init__(self):
        require(self.step_size is None or self.step_size > 0, f"step_size must be positive, got {self.step_size}")
        length = self.trajectory_length
        require(length is None or length > 0, f"trajectory_length must be positive, got {length}")
        require(self.mass in ("diagonal", "full", "identity"), f'mass must be "diagonal", "full" or "identity", got {self.mass!r}')
        require(self.warmup is None or self.warmup >= 0, f"warmup must not be negative, got {self.warmup}")
        require(isinstance(self.thin, int) and self.thin >= 1, f"thin must be a positive integer, got {self.thin}")
        require(0 < self.target_acceptance < 1, f"target_acceptance must lie in (0, 1), got {self.target_acceptance}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Warm-up, and thinning where the draws would not fit."""
        warmup = 2 * num_steps // 5 if self.warmup is None else self.warmup
        require(num_steps == 0 or warmup < num_steps, f"a warm-up of {warmup} leaves no draw of {num_steps} steps")
        bytes_each = sum(w.numel() * w.element_size() for w in model.start.values())
        thin = max(self.thin, math.ceil((num_steps - warmup) * bytes_each / DRAW_BUDGET))
        if thin > self.thin:
            log.warning("every %d-th draw is kept, since more would take over %d GiB", thin, DRAW_BUDGET >> 30)
        return replace(self, warmup=warmup, thin=thin)

    # --- when ---

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """Every thin-th step after warm-up."""
        return range(self.warmup + self.thin - 1, num_steps, self.thin)

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """Early and often for the number of leapfrogs, then at the ends of the windows, then when warm-up ends."""
        if not self.warmup:
            return ()
        early = [s for s in (4, 9, 19, 39, 69) if s < self.warmup]
        return sorted({*early, *windows(self.warmup), self.warmup - 1})

    # --- what ---

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The point, the mass, and what adaptation remembers."""
        start = self.step_size or 0.1 * size(params) ** -0.25
        like = next(iter(params.values()))
        scalar = lambda value: torch.full((), value, dtype=like.dtype, device=like.device)  # noqa: E731
        state = {
            "params": params,
            "mass": make_mass(self.mass).init(params),
            "tuning": restart(scalar(start).log()),
            "leapfrogs": scalar(0.0),
            "noted": {"log_joint": scalar(0.0), "acceptance": scalar(0.0), "divergent": scalar(0.0)},
        }
        state["leapfrogs"] = self._needed(state, adapted=False, warm=True)
        return state

    def step(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One transition."""
        mass = make_mass(self.mass)
        warm = rng.step < self.warmup
        step_size = self._step_size(state, warm) * (1 + JITTER * (2 * rng.uniform(dtype=state["leapfrogs"].dtype) - 1))
        momentum = mass.momentum(state["mass"], rng.normal_like(state["params"]))
        before, slope = model.slope(state["params"], batch)
        energy = before - mass.kinetic(state["mass"], momentum)
        point, value = state["params"], before
        for i in range(self.leapfrogs):
            # A mode that needs fewer than the longest stands still for the rest: a step of zero changes no bit.
            size_i = torch.where(i < state["leapfrogs"], step_size, torch.zeros_like(step_size))
            momentum = {k: p + 0.5 * size_i * slope[k] for k, p in momentum.items()}
            velocity = mass.velocity(state["mass"], momentum)
            point = {k: w + size_i * velocity[k] for k, w in point.items()}
            value, slope = model.slope(point, batch)
            momentum = {k: p + 0.5 * size_i * slope[k] for k, p in momentum.items()}
        change = value - mass.kinetic(state["mass"], momentum) - energy
        change = change.masked_fill(~torch.isfinite(change), -torch.inf)
        acceptance = change.clamp(max=0.0).exp()
        accepted = rng.uniform(dtype=acceptance.dtype).log() < change
        new = {k: torch.where(accepted, point[k], w) for k, w in state["params"].items()}
        noted = {"log_joint": torch.where(accepted, value, before), "acceptance": acceptance, "divergent": (change < -DIVERGENT).to(change.dtype)}
        gathering = warm & (rng.step >= min(75, self.warmup // 6))
        state = {
            "params": new,
            "mass": mass.observed(state["mass"], new, gathering),
            "tuning": tuned(state["tuning"], acceptance, self.target_acceptance, warm),
            "leapfrogs": state["leapfrogs"],
            "noted": noted,
        }
        return state, {"log_joint": noted["log_joint"], "acceptance": acceptance, "step_size": step_size}

    def _step_size(self, state: dict[str, Any], warm: Tensor) -> Tensor:
        if self.step_size is not None:
            return torch.zeros_like(state["leapfrogs"]) + self.step_size
        return torch.where(warm, state["tuning"]["log_step"], state["tuning"]["log_mean_step"]).exp()

    def _needed(self, state: dict[str, Any], adapted: bool, warm: bool) -> Tensor:
        """How many leapfrogs the trajectory takes at the current step size."""
        step_size = self._step_size(state, torch.full_like(state["leapfrogs"], float(warm)) > 0)
        if self.trajectory_length is not None:
            return (self.trajectory_length / step_size).round().clamp(min=1.0)
        return (DEFAULT_LENGTH / step_size).ceil().clamp(1.0, MOST_LEAPFROGS if adapted else MOST_LEAPFROGS_BEFORE_MASS)

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """At the end of a window the draws' variance becomes the inverse mass, and the step size is sought anew."""
        ends = windows(self.warmup)
        if step in ends and self.mass != "identity":
            state = {**state, "mass": make_mass(self.mass).renewed(state["mass"]), "tuning": restart(state["tuning"]["log_step"])}
        adapted = self.mass == "identity" or bool(ends) and step >= ends[0]
        return {**state, "leapfrogs": self._needed(state, adapted, warm=step < self.warmup - 1)}

    def replanned(self, state: dict[str, Any]) -> Self:
        """Loop as long as the mode that needs most leapfrogs."""
        return replace(self, leapfrogs=int(state["leapfrogs"].max()))

    def keep(self, model: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The draw and what was noted of it."""
        return {"params": state["params"], "statistics": state["noted"]}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Samples:
        """The kept draws."""
        require(draws is not None, "no draw was kept; run more steps")
        return Samples(model, draws["params"], draws["statistics"])
