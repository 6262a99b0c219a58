"""The improved variational online Newton method (Shen et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.model import BayesianModel, InternalBatch
from ...core.posteriors import Diagonal
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Number, Weights, add_, scale_, to_vector, under_vmap
from ...weights.rng import Keys, forked
from . import fused_ivon
from .answer import checked, decided_by, judged
from .draws import mean_at
from .gaussian_prior import GaussianPrior, deviations, displaced, scattered, times
from .hindsight import Hindsight
from .settings import check_settings, number
from .sharpness import sharpness
from .start import stiffness, task

# For None: α (h₀ + δ/N), the share of a whole Newton step; and the least h₀, that of a regression in units of its noise's
# precision, with which a log likelihood bends.
NATURAL, INITIAL = 0.5, 0.3
# How many times h₀ the sharpest curvature at the start may be. A step that goes too far brings larger gradients, whose noise
# is in ĥ, and then h is too large for good; those of classes stay bounded by the outputs, and can bear more.
BEARABLE, BEARABLE_OF_CLASSES = 2.0, 8.0
# For curvature_decay=None: how often a run holds the memory of h; but no step replaces more than a share of it, and the share
# times N / (B K) stays below a limit.
FORGETTING, FASTEST, BIAS = 4.0, 0.05, 0.05
START = 1 << 16  # the call number from which a direction is drawn, past anything that draws weights,
MASKS = 1 << 17  # and from which dropout is


@dataclass(frozen=True, kw_only=True)
class IVON(Hindsight, Method):
    """Fit independent normals with Newton's steps, whose curvature comes from the gradients at draws.

        w = μ + σ ε,  σ² = 1 / (N (h + δ/N)),  ĝ = ∇ℓ̄(w),  ĥ = ĝ (w − μ) / σ²
        m ← β₁ m + (1 − β₁) ĝ
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ/N)
        μ ← μ − α (h₀ + δ/N) (m / (1 − β₁ᵗ) + δ/N μ) / (h + δ/N)

    with ℓ̄ the mean negative log likelihood and δ the prior's precision. It needs gradients alone, and where it settles is
    the best independent normal, 1 / σ² = E_q[−∂² log p(w, D)], but for what is left of h₀. By default that is e⁻⁴ of it however
    long the run is, which makes weights narrower of which data say little beside the sharpest. An unknown noise scale is one
    more normal, whose prior acts through its slope.

    Args:
        learning_rate: α at its highest; None: such that steps are half of Newton's. Where weights have several δ, that in
            α (h₀ + δ/N) is their average.
        momentum: β₁.
        curvature_decay: β₂; None: such that a run keeps e⁻⁴ of h₀, and more where it is short for its batches an epoch.
        initial_curvature: h₀. None: 0.3 where a `learning_rate` is given. Otherwise 0.3, of a regression 0.3 / scale² with the
            noise's scale at the start, and more where the first batch bends so sharply that the first steps would go too far.
        num_samples: Draws a step.
        clip_radius: Largest entry of what α (h₀ + δ/N) multiplies.
        schedule: Of the learning rate, as for `pl.MAP`.
    """

    narrower: ClassVar[str] = (
        "a curvature_decay nearer 1 keeps more of initial_curvature, and init= the posterior of pl.MAP starts where something is "
        "learnt"
    )
    learning_rate: float | None = None
    momentum: float = 0.9
    curvature_decay: float | None = None
    initial_curvature: float | None = None
    num_samples: int = 1
    clip_radius: float | None = None
    schedule: Any = "cosine"

    def __post_init__(self):
        check_settings(self)
        require(
            self.initial_curvature is None or self.initial_curvature > 0,
            f"initial_curvature must be positive, got {self.initial_curvature}",
        )
        require(
            self.clip_radius is None or self.clip_radius > 0, f"clip_radius must be positive, got {self.clip_radius}"
        )

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Rates for a run of this length."""
        # ĥ is noise around h, of a variance near N h² / (B K) where the model fits; the squared term of the update turns it
        # into a bias of h by about (1 − β₂) N / (2 B K), so that many batches an epoch ask for a long memory.
        bearable = BIAS * self.num_samples / model.steps_per_epoch
        forgotten = min(FASTEST, FORGETTING / max(1, num_steps), bearable)
        rate, initial = self.learning_rate, self.initial_curvature
        if initial is None and rate is not None:
            initial = INITIAL
        return replace(
            self,
            learning_rate=NATURAL / float(_first_metric(model, model.start, initial or INITIAL))
            if rate is None
            else rate,
            curvature_decay=1 - forgotten if self.curvature_decay is None else self.curvature_decay,
            initial_curvature=initial,
        )

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """Mean, momentum, curvature, and what the rate is rescaled by."""
        given = self.initial_curvature
        initial = INITIAL * stiffness(model, params) if given is None else given
        return {
            "params": params,
            "momentum": {k: torch.zeros_like(w) for k, w in params.items()},
            "curvature": {k: torch.zeros_like(w) + initial for k, w in params.items()},
            "start": _scalar(params) + initial,
            # With the learning rate half a Newton step; which that is does not depend on h₀.
            "rescale": _first_metric(model, params, INITIAL if given is None else given),
        }

    def probed_steps(self, num_steps: int) -> Sequence[int]:
        """Before the first, where h₀ is to be found."""
        return (0,) if self.initial_curvature is None and num_steps else ()

    def probe(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """Raise h₀ to what the sharpest curvature of the batch asks for."""
        prior, temperature = GaussianPrior.of(model, state["params"]), getattr(model, "temperature", 1.0)

        def gradient(point: Weights) -> Weights:
            with _same_draws(model, rng) as alike:
                return prior.likelihood_gradient(alike.slope(point, batch)[1], point, model.num_data, temperature)

        bearable = BEARABLE_OF_CLASSES if task(model) == "classification" else BEARABLE
        least = sharpness(gradient, state["params"], rng.later(START).normal_like(state["params"])) / bearable
        least = torch.where(least.isfinite(), least, 0.0)
        higher = {k: torch.maximum(h, least.to(h)) for k, h in state["curvature"].items()}
        return {**state, "curvature": higher, "start": torch.maximum(state["start"], least.to(state["start"]))}

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        prior, temperature = GaussianPrior.of(model, state["params"]), getattr(model, "temperature", 1.0)
        if prior.number and self._is_fused(model, state, batch):
            return state, {"log_joint": self._fused_step(model, state, batch, rng, prior.number)}
        metric = prior.metric(state["curvature"], model.num_data)
        scale = deviations(metric, model.num_data / temperature)

        def moments(bound: Any, shift: Weights, seen: Any) -> tuple[Tensor, Weights, Weights]:
            point = displaced(state["params"], shift)
            log_joint, slopes = bound.slope(point, seen)
            gradient = prior.likelihood_gradient(slopes, point, model.num_data, temperature)
            return log_joint, gradient, hessian_estimate(gradient, shift, metric, model.num_data / temperature)

        shifts = [scattered(scale, rng) for _ in range(self.num_samples)]
        log_joint, gradient, hessian = mean_at(moments, model, shifts, batch)
        rate = number(self.learning_rate) * find_schedule(self.schedule)(rng.step.double() / model.num_steps)
        ivon_step_(
            state, gradient, hessian, metric, rate=rate * state["rescale"], count=rng.step.double() + 1,
            momentum=self.momentum, decay=number(self.curvature_decay), num_data=model.num_data, prior=prior,
            clip_radius=self.clip_radius,
        )  # fmt: skip
        return state, {"log_joint": log_joint}

    def _is_fused(self, model: Any, state: dict[str, Any], batch: Any) -> bool:
        """Whether kernels do the step: with one draw, of a network on a GPU."""
        numbers = self.learning_rate, self.momentum, self.curvature_decay, self.clip_radius, model.num_data
        return (
            self.num_samples == 1
            and isinstance(model, BayesianModel)
            and isinstance(batch, InternalBatch)
            and fused_ivon.numbers_alone(*numbers)
            and fused_ivon.usable(state["params"], state["momentum"], state["curvature"])
        )

    def _fused_step(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys, precision: float) -> Tensor:
        given: Any = {"num_data": model.num_data, "temperature": model.temperature, "momentum": self.momentum}
        drawn = fused_ivon.draw(
            state, rng, precision=precision, rate=float(number(self.learning_rate)), schedule=find_schedule(self.schedule),
            num_steps=model.num_steps, **given,
        )  # fmt: skip
        log_likelihood, slopes = model.likelihood_slope(drawn.points, batch)
        fused_ivon.step_(
            state, slopes, drawn, precision=precision, decay=float(number(self.curvature_decay)),
            clip_radius=self.clip_radius, **given,
        )  # fmt: skip
        return log_likelihood + drawn.log_prior

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Diagonal:
        """q."""
        metric = GaussianPrior.of(model, state["params"]).metric(state["curvature"], model.num_data)
        scale = deviations(metric, model.num_data / getattr(model, "temperature", 1.0))
        answer = checked(Diagonal(model, state["params"], scale))
        decay, steps = float(number(self.curvature_decay)), model.num_steps
        answer._diagnostics = judged(
            decay**steps, steps, f"curvature_decay={decay:.6g}", "initial_curvature",
            "a smaller curvature_decay, such as 1 - 10 / steps, lets it be forgotten",
            decided_by(kept_share(decay, steps) * state["start"], metric),
        )  # fmt: skip
        return answer


@contextmanager
def _same_draws(model: Any, rng: Keys) -> Iterator[Any]:
    """The model, with what its network draws made the same every time: gradients are compared."""
    if not isinstance(model, BayesianModel):
        yield model
        return
    alike = model.bound(rng=rng.later(MASKS)) if model.needs_key else model
    with forked(0, devices=[next(iter(model.start.values())).device]) if model.network.draws else nullcontext():
        yield alike


def kept_share(decay: float, steps: int) -> float:
    """How much of h₀ is left where data say nothing: the update's last term holds on to it."""
    return (decay + 0.5 * (1.0 - decay) ** 2) ** steps


def _scalar(params: Weights) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=next(iter(params.values())).device)


def _first_metric(model: Any, params: Weights, initial: Number) -> Tensor:
    """h₀ + δ/N, averaged over all weights."""
    metric = GaussianPrior.of(model, params).metric(
        {k: torch.zeros_like(w) + initial for k, w in params.items()}, model.num_data
    )
    return to_vector(metric).double().mean()


# --- the update, on dictionaries of tensors ---


def hessian_estimate(
    gradient: Mapping[str, Tensor], displacement: Mapping[str, Tensor], metric: Mapping[str, Tensor], num_data: Number
) -> Weights:
    """ĥ = ĝ (w − μ) / σ², unbiased for E_q[∇²ℓ̄] by Stein's identity; 1 / σ² = N metric.

    Args:
        gradient: ĝ, of the mean negative log likelihood, at w.
        displacement: w − μ.
        metric: h + δ / N when w was drawn.
        num_data: N, or N / T.
    """
    if under_vmap():
        return {k: g * displacement[k] * metric[k] * num_data for k, g in gradient.items()}
    found = torch._foreach_mul(list(gradient.values()), [displacement[k] for k in gradient])
    torch._foreach_mul_(found, [metric[k] for k in gradient])
    torch._foreach_mul_(found, num_data)
    return dict(zip(gradient, found, strict=True))


def ivon_step_(
    state: Mapping[str, Weights],
    gradient: Mapping[str, Tensor],
    hessian: Mapping[str, Tensor],
    metric: Weights,
    *,
    rate: Number,
    count: Number,
    momentum: Number,
    decay: Number,
    num_data: Number,
    prior: GaussianPrior,
    clip_radius: Number | None = None,
) -> None:
    """One update of state["params"] (μ), state["momentum"] (m) and state["curvature"] (h), in place.

        m ← β₁ m + (1 − β₁) ĝ
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ/N)
        μ ← μ − α clip((m / (1 − β₁ᵗ) + δ/N (μ − μ₀)) / (h + δ/N))

    The last term of h makes it a step along a geodesic, after which h + δ/N is positive whatever ĥ was.

    Args:
        state: The three dictionaries.
        gradient: ĝ, of the mean negative log likelihood, averaged over draws.
        hessian: ĥ, likewise; see `hessian_estimate`.
        metric: h + δ/N before the step; written over by that after it.
        rate: α, times h₀ + δ/N where it is to be rescaled as published.
        count: t, 1 at the first step.
        momentum: β₁.
        decay: β₂.
        num_data: N.
        prior: δ and μ₀.
        clip_radius: Largest entry of what α multiplies.
    """
    add_(scale_(state["momentum"], momentum), gradient, 1.0 - momentum)
    change = _geodesic(state["curvature"], hessian, metric, 1.0 - decay)
    add_(state["curvature"], change)
    add_(metric, change)
    direction = times(state["momentum"], 1.0 / (1.0 - momentum**count))
    prior.add_pull_(direction, state["params"], 1.0 / num_data)
    add_(state["params"], _quotient(direction, metric, clip_radius), -rate)


def _geodesic(
    curvature: Mapping[str, Tensor], hessian: Mapping[str, Tensor], metric: Mapping[str, Tensor], share: Number
) -> Weights:
    """metric · x (x / 2 − 1) with x = share · (h − ĥ) / metric: what h and h + δ/N change by."""
    if under_vmap():
        found = {}
        for k, h in curvature.items():
            x = (h - hessian[k]) / metric[k] * share
            found[k] = metric[k] * x * (x * 0.5 - 1)
        return found
    bottom = [metric[k] for k in curvature]
    steps = list(torch._foreach_sub(list(curvature.values()), [hessian[k] for k in curvature]))
    torch._foreach_div_(steps, bottom)
    torch._foreach_mul_(steps, share)
    factor = torch._foreach_mul(steps, 0.5)
    torch._foreach_sub_(factor, 1.0)
    torch._foreach_mul_(steps, factor)
    torch._foreach_mul_(steps, bottom)
    return dict(zip(curvature, steps, strict=True))


def _quotient(top: Weights, bottom: Mapping[str, Tensor], clip_radius: Number | None) -> Weights:
    """top / bottom with entries of at most ± clip_radius; writes into `top`."""
    if under_vmap():
        top = {k: t / bottom[k] for k, t in top.items()}
    else:
        torch._foreach_div_(list(top.values()), [bottom[k] for k in top])
    if clip_radius is None:
        return top
    return {k: t.clamp(min=-clip_radius, max=clip_radius) for k, t in top.items()}  # type: ignore[arg-type]
