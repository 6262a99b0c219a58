"""Variational online Gauss–Newton (Osawa et al., 2019) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.diagnostics import together
from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Diagonal
from ..curvature.diagonal import squares
from ..curvature.passes import Traced
from ..inference.natural_gradient.answer import checked, judged
from ..inference.natural_gradient.gaussian_prior import GaussianPrior, deviations
from ..inference.natural_gradient.vogn import undetermined, vogn_metric, vogn_step_
from ..weights.algebra import Weights, like, scale_, wide_zeros
from ..weights.rng import Keys
from .checks import betas_in_range, number
from .groups import group_weights
from .measured import averages
from .optimizer import BayesianOptimizer, Part
from .parts import require_examples


class OnlineGaussNewton(BayesianOptimizer):
    """What VOGN and OGN share: a diagonal of squared gradients of single examples, and the step that divides by it.

    The first step has no curvature yet to draw with: it is taken at the mean, and its squares are where s starts.
    """

    measures = True

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float, betas: tuple[float, float],
        prior_precision: float | Mapping[str, float], damping: float, tempering: float, augmentation_factor: float,
        reduction: str, num_samples: int, seed: int,
    ):  # fmt: skip
        betas, damping, tempering = betas_in_range(betas), number("damping", damping), number("tempering", tempering)
        augmentation_factor = number("augmentation_factor", augmentation_factor)
        require(damping >= 0, f"damping must not be negative, got {damping}")
        require(tempering > 0, f"tempering must be positive, got {tempering}")
        require(
            tempering * (1 - betas[1]) <= 1,
            f"tempering {tempering} must be at most 1 / (1 − β₂), which is {1 / (1 - betas[1]):.3g}: s would become negative",
        )
        require(augmentation_factor > 0, f"augmentation_factor must be positive, got {augmentation_factor}")
        numbers = {
            "lr": lr, "betas": betas, "damping": damping, "tempering": tempering,
            "augmentation_factor": augmentation_factor,
        }  # fmt: skip
        super().__init__(
            network, numbers, num_data=num_data, prior_precision=prior_precision, reduction=reduction,
            num_samples=num_samples, seed=seed,
        )  # fmt: skip

    @property
    def _total(self) -> float:
        """ρ N."""
        return self.param_groups[0]["augmentation_factor"] * self.num_data

    def measure_use(self, traced: Traced, place: int, slope: Tensor, names: Sequence[str]) -> bool:
        """Σᵢ gᵢ² of weights that are used once, on the scale of the loss."""
        slopes: list[Any] = [None] * len(traced.calls)
        slopes[place] = slope.unsqueeze(0)
        self.ledger.now.add("squares", squares(traced, slopes[place], names, slopes))
        return True

    def measure(self, traced: Traced, columns: Tensor, names: Sequence[str]) -> None:
        """Σᵢ gᵢ² of the others, on the scale of the loss."""
        if names:
            self.ledger.now.add("squares", squares(traced, columns, names))

    def _close_draw(self) -> None:
        """With a mean loss of B examples, gᵢ is B times what backward brings; Σᵢ gᵢ² / B is B times Σᵢ of its squares."""
        now = self.ledger.now
        if self.reduction == "mean" and "squares" in now.tensors:
            scale_(now.tensors["squares"], float(now.examples))

    def _update(self, parts: list[Part]) -> None:
        require_examples(self)
        for part in parts:
            weights = self.weights()
            found = averages(self, "squares", 2, part.params)
            group, tau = part.group, part.group["tempering"]
            for k in part.params:
                own = self.state[weights[k]]
                if "curvature" not in own:
                    own["momentum"], own["curvature"] = wide_zeros(weights[k]), found[k] / tau
            state = {
                "params": part.params,
                "momentum": {k: self.state[weights[k]]["momentum"] for k in part.params},
                "curvature": {k: self.state[weights[k]]["curvature"] for k in part.params},
            }
            vogn_step_(
                state, {k: g.clone() for k, g in part.gradient.items()}, found, rate=group["lr"],
                momentum=group["betas"][0], decay=group["betas"][1], num_data=self._total, prior=part.prior,
                tempering=tau, damping=group["damping"],
            )  # fmt: skip

    def scales(self) -> Weights:
        """The standard deviations of q; where no gradient ever came, those of the prior and the damping."""
        found: Weights = {}
        for group in self.param_groups:
            own = {k: self.state[p].get("curvature", wide_zeros(p)) for k, p in group_weights(group).items()}
            prior = GaussianPrior(dict.fromkeys(own, group["prior_precision"]))
            metric = vogn_metric(own, num_data=self._total, prior=prior, damping=group["damping"])
            found.update(deviations(metric, self._total))
        return like(self.weights(), found)

    def _posterior(self, model: BayesianModel, mean: Weights) -> Diagonal:
        scales = self.scales()
        answer = checked(Diagonal(model, mean, {k: scales[k].detach() for k in mean}))
        first = self.param_groups[0]
        steps, beta = first["step"], first["betas"][1]
        kept = (1 - first["tempering"] * (1 - beta)) ** max(0, steps - 1)
        way_out = "more steps, or a smaller betas[1], let it be forgotten"
        remembered = judged(kept, steps, f"betas[1]={beta}", "the first batch's squared gradients", way_out)
        priors = {k: g["prior_precision"] for g in self.param_groups for k in group_weights(g)}
        answer._diagnostics = together(undetermined(answer.scale, GaussianPrior(priors)), remembered)
        return answer


class VOGN(OnlineGaussNewton):
    """Weights are drawn from q = N(μ, 1 / (N (s + δ/N + γ))), and μ and s follow the gradients of single examples there.

    m ← β₁ m + ĝ + τ δ/N μ,   s ← (1 − τ (1 − β₂)) s + (1 − β₂) ĥ,   μ ← μ − lr m / (s + δ/N + γ)

    ĝ and ĥ are the averages of the examples' gradients and of their squares.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate.
        betas: β₁ and β₂.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        damping: γ.
        tempering: τ: q approaches exp(−N ℓ̄ / τ) p(w).
        augmentation_factor: ρ, by which augmentation makes N larger.
        num_samples: How many draws `step(closure)` averages over.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: Draws are a function of (seed, step, call) alone.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.95),
        prior_precision: float | Mapping[str, float] = 1.0, damping: float = 0.0, tempering: float = 1.0,
        augmentation_factor: float = 1.0, num_samples: int = 1, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        super().__init__(
            network, num_data=num_data, lr=lr, betas=betas, prior_precision=prior_precision, damping=damping,
            tempering=tempering, augmentation_factor=augmentation_factor, reduction=reduction, num_samples=num_samples,
            seed=seed,
        )  # fmt: skip

    def _deviation(self, rng: Keys) -> Weights:
        weights = self.weights()
        if self.param_groups[0]["step"] == 0:
            return {}
        noise, scales = rng.normal_like(weights), self.scales()
        torch._foreach_mul_([noise[k] for k in scales], list(scales.values()))
        return noise
