"""Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011) with dual averaging (Hoffman & Gelman, 2014)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Trajectory, require
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
class HMC(Trajectory):
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
    slopes_per_step: ClassVar[int] = 64

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
        require(
            self.mass in ("diagonal", "full", "identity"),
            f'mass must be "diagonal", "full" or "identity", got {self.mass!r}',
        )
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

    @property
    def _warm_up(self) -> int:
        return self.warmup or 0  # `resolved` has made it a number

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """Every thin-th step after warm-up."""
        return range(self._warm_up + self.thin - 1, num_steps, self.thin)

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """Early and often for the number of leapfrogs, then at the ends of the windows, then when warm-up ends."""
        if not self._warm_up:
            return ()
        early = [s for s in (4, 9, 19, 39, 69) if s < self._warm_up]
        return sorted({*early, *windows(self._warm_up), self._warm_up - 1})

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
        state["leapfrogs"] = self._needed(
            state, adapted=not windows(self._warm_up) or self.mass == "identity", warm=True
        )
        return state

    @property
    def num_moves(self) -> int:
        """Leapfrogs of the mode that needs most."""
        return self.leapfrogs

    def begin(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """Draw a momentum."""
        step_size = self._step_size(state, rng.step < self._warm_up)
        step_size = step_size * (1 + JITTER * (2 * rng.uniform(dtype=step_size.dtype) - 1))
        momentum = make_mass(self.mass).momentum(state["mass"], rng.normal_like(state["params"]))
        log_joint, slope = model.slope(state["params"], batch)
        return {
            "params": state["params"],
            "momentum": momentum,
            "slope": slope,
            "log_joint": log_joint,
            "mass": state["mass"],
            "step_size": step_size,
            "left": state["leapfrogs"],
            "log_joint_before": log_joint.clone(),
            "energy_before": log_joint - make_mass(self.mass).kinetic(state["mass"], momentum),
        }

    def move(self, model: Any, walk: dict[str, Any], batch: Any) -> dict[str, Any]:
        """One leapfrog."""
        # A mode that needs fewer than the longest stands still for the rest: a step of zero changes no bit.
        epsilon = torch.where(walk["left"] > 0, walk["step_size"], torch.zeros_like(walk["step_size"]))
        momentum = {k: p + 0.5 * epsilon * walk["slope"][k] for k, p in walk["momentum"].items()}
        velocity = make_mass(self.mass).velocity(walk["mass"], momentum)
        point = {k: w + epsilon * velocity[k] for k, w in walk["params"].items()}
        log_joint, slope = model.slope(point, batch)
        momentum = {k: p + 0.5 * epsilon * slope[k] for k, p in momentum.items()}
        moved = {
            "params": point,
            "momentum": momentum,
            "slope": slope,
            "log_joint": log_joint,
            "left": walk["left"] - 1,
        }
        return {**walk, **moved}

    def end(
        self, model: Any, state: dict[str, Any], walk: dict[str, Any], rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Accept or stay, and learn from it while warming up."""
        mass, warm = make_mass(self.mass), rng.step < self._warm_up
        change = walk["log_joint"] - mass.kinetic(state["mass"], walk["momentum"]) - walk["energy_before"]
        change = change.masked_fill(~torch.isfinite(change), -torch.inf)
        acceptance = change.clamp(max=0.0).exp()
        accepted = rng.uniform(dtype=acceptance.dtype).log() < change
        new = {k: torch.where(accepted, walk["params"][k], w) for k, w in state["params"].items()}
        noted = {
            "log_joint": torch.where(accepted, walk["log_joint"], walk["log_joint_before"]),
            "acceptance": acceptance,
            "divergent": (change < -DIVERGENT).to(change.dtype),
        }
        state = {
            "params": new,
            "mass": mass.observed(state["mass"], new, warm & (rng.step >= min(75, self._warm_up // 6))),
            "tuning": tuned(state["tuning"], acceptance, self.target_acceptance, warm),
            "leapfrogs": state["leapfrogs"],
            "noted": noted,
        }
        return state, {"log_joint": noted["log_joint"], "acceptance": acceptance, "step_size": walk["step_size"]}

    def _step_size(self, state: dict[str, Any], warm: Tensor) -> Tensor:
        if self.step_size is not None:
            return torch.zeros_like(state["leapfrogs"]) + self.step_size
        return torch.where(warm, state["tuning"]["log_step"], state["tuning"]["log_mean_step"]).exp()

    def _needed(self, state: dict[str, Any], adapted: bool, warm: bool) -> Tensor:
        """How many leapfrogs the trajectory takes at the current step size."""
        step_size = self._step_size(state, torch.full_like(state["leapfrogs"], float(warm)) > 0)
        if not adapted:  # an unsuitable mass asks for tiny steps: warm-up draws are not worth long trajectories
            return (
                ((self.trajectory_length or DEFAULT_LENGTH) / step_size).ceil().clamp(1.0, MOST_LEAPFROGS_BEFORE_MASS)
            )
        if self.trajectory_length is not None:
            return (self.trajectory_length / step_size).round().clamp(min=1.0)
        return (DEFAULT_LENGTH / step_size).ceil().clamp(1.0, MOST_LEAPFROGS)

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """At the end of a window the draws' variance becomes the inverse mass, and the step size is sought anew."""
        ends = windows(self._warm_up)
        if step in ends and self.mass != "identity":
            state = {
                **state,
                "mass": make_mass(self.mass).renewed(state["mass"]),
                "tuning": restart(state["tuning"]["log_step"]),
            }
        adapted = self.mass == "identity" or not ends or step >= ends[0]
        return {**state, "leapfrogs": self._needed(state, adapted, warm=step < self._warm_up - 1)}

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
