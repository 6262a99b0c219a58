"""Online Gauss–Newton: VOGN without its draws (Osawa et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from ...core.diagnostics import together
from ...core.method import require
from ...core.posteriors import Diagonal
from ...core.schedules import schedule as find_schedule
from ...weights.rng import Keys
from .example_moments import mean_moments, refuse_bare_density
from .gaussian_prior import GaussianPrior
from .settings import check_settings, number
from .squared_gradients import SquaredGradients
from .vogn import first_forgets, gauss_newton_posterior, remembers_first, vogn_step_

RATE = 0.2  # of learning_rate / (1 − momentum), for None
FORGETTING, SLOWEST, FASTEST = 10.0, 1e-3, 0.1  # how often a run holds the memory of s, and bounds on β₂, for None


@dataclass(frozen=True, kw_only=True)
class OGN(SquaredGradients):
    """Climb to the highest point with VOGN's steps, whose curvature is then that of a normal around it.

        ĝ, ĥ = means over examples of gᵢ, gᵢ²;  gᵢ = −∇ log p(yᵢ | xᵢ, μ)
        m ← β₁ m + ĝ + δ/N μ,   s ← (1 − β₂) s + β₂ ĥ,   μ ← μ − α m / (s + δ/N + γ)
        q = N(μ, 1 / (N (s + δ/N + γ)))

    with δ the prior's precision and β₂ = 1 − curvature_decay. The first step takes s from its batch. Where a network fits every
    example its squared gradients vanish, and without damping q becomes as wide as the prior: its mean predicts well and its
    draws do not. `pl.VOGN` squares gradients at draws, which keeps them alive.

    Args:
        learning_rate: α at its highest; None: a fifth of 1 − momentum.
        momentum: β₁.
        curvature_decay: 1 − β₂; None: such that a run of T steps holds the memory of s ten times, β₂ = 10 / T within bounds.
        damping: γ, which bounds σ by 1 / √(γN).
        schedule: Of the learning rate, as for `pl.MAP`.
    """

    tries_draws: ClassVar[bool] = False
    learning_rate: float | None = None
    momentum: float = 0.9
    curvature_decay: float | None = None
    damping: float = 0.0
    schedule: Any = "cosine"

    def __post_init__(self):
        check_settings(self)
        require(self.damping >= 0, f"damping must not be negative, got {self.damping}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Rates for a run of this length."""
        refuse_bare_density(model, "OGN")
        GaussianPrior.of(model, model.start)
        share = min(FASTEST, max(SLOWEST, FORGETTING / max(1, num_steps)))
        return replace(
            self,
            learning_rate=RATE * (1 - self.momentum) if self.learning_rate is None else self.learning_rate,
            curvature_decay=1 - share if self.curvature_decay is None else self.curvature_decay,
        )

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        prior = GaussianPrior.of(model, state["params"])
        log_joint, gradient, squares = mean_moments(model, [state["params"]], batch, prior)
        vogn_step_(
            state, gradient, squares,
            rate=number(self.learning_rate) * find_schedule(self.schedule)(rng.step.double() / model.num_steps),
            momentum=self.momentum, decay=first_forgets(number(self.curvature_decay), 1.0, rng.step), num_data=model.num_data,
            prior=prior, damping=self.damping,
        )  # fmt: skip
        return state, {"log_joint": log_joint}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Diagonal:
        """q."""
        prior = GaussianPrior.of(model, state["params"])
        answer = gauss_newton_posterior(model, state, prior, model.num_data, self.damping)
        decay, steps = float(number(self.curvature_decay)), model.num_steps
        remembered = remembers_first(decay ** max(0, steps - 1), steps, decay)
        answer._diagnostics = together(answer._diagnostics, remembered)
        return answer
