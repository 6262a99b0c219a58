"""Variational online Gauss–Newton (Khan et al., 2018; Osawa et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics, together
from ...core.method import require
from ...core.posteriors import Diagonal
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Number, Weights, add_, add_quotient_, scale_
from ...weights.rng import Keys
from .answer import checked, decided_by, judged
from .example_moments import mean_moments, refuse_bare_density
from .gaussian_prior import GaussianPrior, deviations, displaced, scattered
from .settings import check_settings, number
from .squared_gradients import SquaredGradients
from .start import stiffness

# Least precision of a weight in the metric, where it has no prior and the data say nothing of it either.
LOOSEST = 1.0
ROUNDING = 1e-5
RATE = 0.2  # of learning_rate / (1 − momentum), for None
# For curvature_decay=None: how often a run holds the memory of s, the most that a step replaces of it, and what s starts
# from. A q as wide as the prior drowns a network that has not learnt to bear it, whose squared gradients then jump; from this
# start q widens as s is forgotten, and the network has the run to follow.
FORGETTING, FASTEST, INITIAL = 5.0, 0.1, 0.3
FORGETS = "more steps or a smaller curvature_decay let it be forgotten"


@dataclass(frozen=True, kw_only=True)
class VOGN(SquaredGradients):
    """Fit independent normals with steps whose curvature is the mean square of the examples' gradients.

        w = μ + σ ε,  σ² = 1 / (ρN (s + δ/ρN + γ))
        ĝ, ĥ = means over examples and draws of gᵢ, gᵢ²;  gᵢ = −∇ log p(yᵢ | xᵢ, w)
        m ← β₁ m + ĝ + τ δ/ρN μ,   s ← (1 − τ β₂) s + β₂ ĥ,   μ ← μ − α m / (s + δ/ρN + γ)

    with δ the prior's precision and β₂ = 1 − curvature_decay. It settles where 1 / σ² = ρ Σᵢ E_q[gᵢ²] / τ + δ, which is no
    optimum of a bound but is close to one where the model fits; `pl.IVON` finds the optimum. For τ ≠ 1 the published
    algorithm would have τ δ there. A model's temperature T multiplies σ² and nothing else, since it divides likelihood and
    prior alike.

    Args:
        learning_rate: α at its highest; None: a fifth of 1 − momentum.
        momentum: β₁.
        curvature_decay: 1 − β₂; None: such that a run of T steps keeps e⁻⁵ of the s that it started from, β₂ = 5 / τT.
        damping: γ.
        num_samples: Draws a step that every example is seen under.
        num_parts: Of a batch, each of which is seen under draws of its own: as many processes would have them. A step then
            averages num_parts times as many draws at the same number of passes over an example.
        tempering: τ, which tempers the likelihood and not the prior.
        augmentation_factor: ρ, by how much augmentation makes more of the data.
        schedule: Of the learning rate, as for `pl.MAP`.
        tempering_start: τ at the first step, from where it goes to `tempering` in a straight line.
        tempering_warmup: Over how many steps it does.
        initial_curvature: s before the first step. None: 0.3, of a regression 0.3 / scale² with the noise's scale at the start,
            where `curvature_decay` is None too; where it is given, that of the first batch, for which the first step is made at μ
            itself.
    """

    learning_rate: float | None = None
    momentum: float = 0.9
    curvature_decay: float | None = None
    damping: float = 0.0
    num_samples: int = 1
    num_parts: int = 1
    tempering: float = 1.0
    augmentation_factor: float = 1.0
    schedule: Any = "cosine"
    tempering_start: float | None = None
    tempering_warmup: int = 0
    initial_curvature: float | None = None

    def __post_init__(self):
        check_settings(self)
        require(self.damping >= 0, f"damping must not be negative, got {self.damping}")
        for name in ("tempering", "augmentation_factor"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        parts = self.num_parts
        require(isinstance(parts, int) and parts >= 1, f"num_parts must be a positive integer, got {parts}")
        start, steps = self.tempering_start, self.tempering_warmup
        require(start is None or start > 0, f"tempering_start must be positive, got {start}")
        require(
            (steps > 0) == (start is not None),
            f"a warm-up needs both tempering_start and tempering_warmup, got {start} and {steps}",
        )
        require(
            self.initial_curvature is None or self.initial_curvature > 0,
            f"initial_curvature must be positive, got {self.initial_curvature}",
        )

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Rates for a run of this length."""
        refuse_bare_density(model, "VOGN")
        GaussianPrior.of(model, model.start)
        highest = max(self.tempering, self.tempering_start or 0.0)
        found = with_rates(self, model, num_steps, self.tempering, highest)
        require(
            highest * (1 - found.curvature_decay) <= 1,
            f"tempering {highest} must be at most 1 / (1 − curvature_decay), which is {1 / (1 - found.curvature_decay):.3g}",
        )
        return found

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """Mean, momentum and curvature."""
        state, initial = super().init(model, params), self.initial_curvature
        if initial is not None:
            state["curvature"] = {k: s + initial for k, s in state["curvature"].items()}
        return state

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        prior, total = GaussianPrior.of(model, state["params"]), self.augmentation_factor * model.num_data
        metric = vogn_metric(state["curvature"], num_data=total, prior=prior, damping=self.damping)
        scale, tempering = deviations(metric, total / model.temperature), self._tempering(rng.step)
        decay = number(self.curvature_decay)
        if self.initial_curvature is None:  # so before the first step there is nothing to draw by
            scale = scale_(scale, (rng.step > 0).to(torch.float64))
            decay = first_forgets(decay, tempering, rng.step)
        draws = [displaced(state["params"], scattered(scale, rng)) for _ in range(self.num_samples * self.num_parts)]
        del metric, scale  # each as long as the weights, and the pass has better use for the room
        # Whatever prior an unknown has, beside the likelihood it counts as δ does: not with the examples' τ and ρ.
        share = tempering / self.augmentation_factor
        log_joint, gradient, squares = mean_moments(model, draws, batch, prior, self.num_parts, share)
        vogn_step_(
            state, gradient, squares,
            rate=number(self.learning_rate) * find_schedule(self.schedule)(rng.step.double() / model.num_steps),
            momentum=self.momentum, decay=decay, num_data=total, prior=prior, tempering=tempering, damping=self.damping,
        )  # fmt: skip
        return state, {"log_joint": log_joint}

    def _tempering(self, step: Tensor) -> Number:
        if self.tempering_start is None:
            return self.tempering
        along = (step.double() / self.tempering_warmup).clamp(max=1.0)
        return self.tempering_start + (self.tempering - self.tempering_start) * along

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Diagonal:
        """q."""
        prior, total = GaussianPrior.of(model, state["params"]), self.augmentation_factor * model.num_data
        answer = gauss_newton_posterior(model, state, prior, total, self.damping)
        decay, steps = float(number(self.curvature_decay)), model.num_steps
        along = torch.zeros(steps, dtype=torch.float64) + self._tempering(torch.arange(steps))
        kept = 1 - along * (1 - decay)
        if self.initial_curvature is None:
            answer._diagnostics = together(answer._diagnostics, remembers_first(float(kept[1:].prod()), steps, decay))
            return answer
        share = float(kept.prod())
        metric = vogn_metric(state["curvature"], num_data=total, prior=prior, damping=self.damping)
        decided = decided_by(share * self.initial_curvature, metric)
        width = judged(share, steps, f"curvature_decay={decay:.6g}", "initial_curvature", FORGETS, decided)
        answer._diagnostics = together(answer._diagnostics, width)
        return answer


# --- what it shares with OGN ---


def with_rates(method: Any, model: Any, num_steps: int, tempering: float, highest: float) -> Any:
    """The method with numbers in place of None; an initial curvature stays None where the first batch is to give it."""
    rate = RATE * (1 - method.momentum) if method.learning_rate is None else method.learning_rate
    if method.curvature_decay is not None:
        return replace(method, learning_rate=rate)
    share = min(1.0, FASTEST / highest, FORGETTING / max(1, num_steps) / tempering)
    initial = method.initial_curvature or INITIAL * float(stiffness(model, model.start))
    return replace(method, learning_rate=rate, curvature_decay=1 - share, initial_curvature=initial)


def first_forgets(decay: Number, tempering: Number, step: Tensor) -> Tensor:
    """The decay, but such that the first step makes s = ĥ / τ whatever it was."""
    first = (step == 0).double()
    return decay * (1 - first) + (1 - 1 / tempering) * first


def remembers_first(kept: float, steps: int, decay: float) -> Diagnostics | None:
    """Whether s is still that of the first batch, whose gradients were those of weights that had learnt nothing."""
    return judged(kept, steps, f"curvature_decay={decay:.6g}", "the first batch's squared gradients", FORGETS)


def gauss_newton_posterior(
    model: Any, state: dict[str, Any], prior: GaussianPrior, num_data: float, damping: float
) -> Diagonal:
    """N(μ, 1 / (N (s + δ/N + γ))); the variance times the temperature."""
    metric = vogn_metric(state["curvature"], num_data=num_data, prior=prior, damping=damping)
    answer = checked(Diagonal(model, state["params"], deviations(metric, num_data / model.temperature)))
    answer._diagnostics = undetermined(answer.scale, prior, model.temperature)
    return answer


def undetermined(scale: Mapping[str, Tensor], prior: GaussianPrior, temperature: float = 1.0) -> Diagnostics | None:
    """What is to be said of weights that have neither prior nor curvature."""
    loosest = (temperature / LOOSEST) ** 0.5
    held = {k: int((scale[k] >= (1 - ROUNDING) * loosest).sum()) for k in prior.unbelieved if k in scale}
    names = [k for k, count in held.items() if count]
    if not names:
        return None
    said = (
        f"{sum(held.values())} weights of {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} have no prior, and data say "
        f"next to nothing of them, so their posterior is hardly a distribution; they are held with a deviation of {loosest:g}: "
        "give them a prior such as pl.priors.Normal()"
    )
    return Diagnostics(messages=(said,), ok=False)


# --- the update, on dictionaries of tensors ---


def vogn_metric(
    curvature: Mapping[str, Tensor], *, num_data: Number, prior: GaussianPrior, damping: Number = 0.0
) -> Weights:
    """s + δ/N + γ: what steps are divided by, and N times what the precision of q is.

    A weight that has neither prior nor curvature would have no distribution: it is held as one of precision 1 would be.
    """
    found = prior.metric(curvature, num_data, damping)
    for k in prior.unbelieved:
        found[k] = found[k].clamp(min=LOOSEST / num_data)
    return found


def vogn_step_(
    state: Mapping[str, Weights],
    gradient: Weights,
    squares: Mapping[str, Tensor],
    *,
    rate: Number,
    momentum: Number,
    decay: Number,
    num_data: Number,
    prior: GaussianPrior,
    tempering: Number = 1.0,
    damping: Number = 0.0,
) -> None:
    """One update of state["params"] (μ), state["momentum"] (m) and state["curvature"] (s), in place.

        m ← β₁ m + ĝ + τ δ/N (μ − μ₀)
        s ← (1 − τ β₂) s + β₂ ĥ,    β₂ = 1 − decay
        μ ← μ − α m / (s + δ/N + γ)

    Args:
        state: The three dictionaries.
        gradient: ĝ = mean of gᵢ over examples and draws, gᵢ the gradient of example i's negative log likelihood; may be
            written into.
        squares: ĥ = mean of gᵢ², likewise.
        rate: α. There is no 1 − β₁ in m, so the steps of a long run are α / (1 − β₁) long.
        momentum: β₁.
        decay: 1 − β₂.
        num_data: N, times ρ where augmentation makes more of it.
        prior: δ and μ₀.
        tempering: τ.
        damping: γ.
    """
    # Whatever τ is, q is to approach exp(−N ℓ̄ / τ) p(w). Its mean has ĝ / τ + δ/N (μ − μ₀) = 0, which is what m averages,
    # times τ; its precision is N ĥ / τ + δ, and s settles at ĥ / τ, so that here δ/N stands without τ. The published
    # algorithm has τ δ/N in both places, which makes the prior's part of the precision τ δ; for τ = 1 they are the same.
    prior.add_pull_(gradient, state["params"], tempering / num_data)
    add_(scale_(state["momentum"], momentum), gradient)
    share = 1.0 - decay
    add_(scale_(state["curvature"], 1.0 - tempering * share), squares, share)
    metric = vogn_metric(state["curvature"], num_data=num_data, prior=prior, damping=damping)
    add_quotient_(state["params"], state["momentum"], metric, -rate)
