"""The improved variational online Newton method (Shen et al., 2024) as an optimiser."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.diagnostics import Diagnostics, together
from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Diagonal
from ..inference.natural_gradient import fused_ivon
from ..inference.natural_gradient.answer import checked, decided_by, judged
from ..inference.natural_gradient.gaussian_prior import GaussianPrior, deviations
from ..inference.natural_gradient.ivon import ivon_step_, kept_share
from ..inference.natural_gradient.start import stiffness
from ..weights.algebra import Weights, like, wide_zeros
from ..weights.rng import Keys
from .checks import betas_in_range, number
from .groups import group_weights
from .measured import averages
from .optimizer import BayesianOptimizer, Part

log = logging.getLogger("plausible")
UNITS = 50.0  # how many times h₀ an example's loss may bend
LONGEST = 2.0  # times a weight's distance from zero that steps towards it may go where data say nothing


class IVON(BayesianOptimizer):
    """Weights are drawn from q = N(μ, 1 / (N (h + δ/N))); gradients there give the direction and, by Stein, the Hessian h.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate, as published: it multiplies h₀ + δ/N, of weights with another δ theirs.
        betas: β₁ of the momentum and β₂ of the Hessian, which must forget h₀ in the course of a run: 1 − β₂ of several
            times one over the number of steps does.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        hess_init: h₀.
        clip_radius: Largest entry of a step, before the learning rate.
        num_samples: How many draws `step(closure)` averages over.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: Draws are a function of (seed, step, call) alone.
    """

    remembers = True
    _too_long: str | None = None

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 0.5, betas: tuple[float, float] = (0.9, 0.9995),
        prior_precision: float | Mapping[str, float] = 1.0, hess_init: float = 0.3, clip_radius: float | None = None,
        num_samples: int = 1, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        betas, hess_init = betas_in_range(betas), number("hess_init", hess_init)
        clip_radius = None if clip_radius is None else number("clip_radius", clip_radius)
        require(hess_init > 0, f"hess_init must be positive, got {hess_init}")
        require(clip_radius is None or clip_radius > 0, f"clip_radius must be positive, got {clip_radius}")
        numbers = {"lr": lr, "betas": betas, "hess_init": hess_init, "clip_radius": clip_radius}
        super().__init__(
            network, numbers, num_data=num_data, prior_precision=prior_precision, reduction=reduction,
            num_samples=num_samples, seed=seed,
        )  # fmt: skip

    def gradient_came(self, name: str, weight: Tensor) -> None:
        """ĝ (w − μ): what Stein's identity takes the average of, as soon as ĝ is there."""
        mean = self.ledger.mean[name] if self.ledger.mean is not None else self.state[weight].get("mean")
        if mean is not None and weight.grad is not None:
            own = self.ledger.now.tensors.setdefault("products", {})
            shift = weight.detach() - mean
            wide = torch.promote_types(shift.dtype, torch.float32)
            own[name] = shift.to(wide).mul_(weight.grad)  # of all that has come so far

    def _close_draw(self) -> None:
        """See the gradients that were put there by hand, too."""
        seen = set(self.ledger.now.tensors.get("products", {}))
        with torch.no_grad():
            for name, weight in self.weights().items():
                if name not in seen:
                    self.gradient_came(name, weight)
        # Inside `sampled()` a scaler's factor is still in them; a bare step comes after the scaler.
        if not seen and self.ledger.inside and self.witness is not None and self.ledger.now.tensors.get("products"):
            self.witness.stand()

    def _begin(self, group: dict[str, Any]) -> dict[str, Tensor]:
        """The weights of a group, each with a momentum and a curvature."""
        weights = group_weights(group)
        for p in weights.values():
            own = self.state[p]
            if "curvature" not in own:
                own["momentum"], own["curvature"] = wide_zeros(p), wide_zeros(p) + group["hess_init"]
        return weights

    def scales(self) -> Weights:
        """The standard deviations of q."""
        metrics: Weights = {}
        for group in self.param_groups:
            curvature = {k: self.state[p]["curvature"] for k, p in self._begin(group).items()}
            prior = GaussianPrior(dict.fromkeys(curvature, group["prior_precision"]))
            metrics.update(prior.metric(curvature, self.num_data))
        return like(self.weights(), deviations(metrics, self.num_data))

    def _deviation(self, rng: Keys) -> Weights:
        noise, scales = rng.normal_like(self.weights()), self.scales()
        torch._foreach_mul_([noise[k] for k in scales], list(scales.values()))
        return noise

    def _update(self, parts: list[Part]) -> None:
        for part in parts:
            group, weights = part.group, self._begin(part.group)
            rescale = group["hess_init"] + group["prior_precision"] / self.num_data
            self._note_length(group["lr"], rescale)
            state: dict[str, Weights] = {
                "params": part.params,
                "momentum": {k: self.state[weights[k]]["momentum"] for k in part.params},
                "curvature": {k: self.state[weights[k]]["curvature"] for k in part.params},
            }
            products = averages(self, "products", 1, part.params)
            numbers: dict[str, Any] = {
                "rate": group["lr"] * rescale, "count": group["step"] + 1, "momentum": group["betas"][0],
                "decay": group["betas"][1], "num_data": float(self.num_data), "clip_radius": group["clip_radius"],
            }  # fmt: skip
            precision = group["prior_precision"]
            if fused_ivon.numbers_alone(precision, *numbers.values()) and fused_ivon.usable(*state.values()):
                fused_ivon.step_of_products_(state, part.gradient, products, precision=precision, **numbers)
                continue
            metric = part.prior.metric(state["curvature"], self.num_data)
            torch._foreach_mul_(list(products.values()), list(metric.values()))
            torch._foreach_mul_(list(products.values()), float(self.num_data))
            ivon_step_(state, part.gradient, products, metric, prior=part.prior, **numbers)

    def _note_length(self, rate: Any, rescale: Any) -> None:
        """Say once that steps by the prior alone are too long: its pull is no part of the momentum, which would bear more."""
        if self._too_long is None and not isinstance(rate, Tensor) and rate * rescale > LONGEST:
            self._too_long = (
                f"lr={rate:.3g} times hess_init + prior_precision / num_data is {rate * rescale:.3g}: where data say nothing, "
                f"steps towards zero take weights beyond it, farther each time; take lr={0.5 / rescale:.2g} or less"
            )
            log.warning("IVON: %s", self._too_long)

    def _posterior(self, model: BayesianModel, mean: Weights) -> Diagonal:
        scales = self.scales()
        answer = checked(Diagonal(model, mean, {k: scales[k] for k in mean}))
        long = None if self._too_long is None else Diagnostics(messages=(self._too_long,), ok=False)
        answer._diagnostics = together(long, self._judged(), self._in_other_units(model))
        return answer

    def _in_other_units(self, model: BayesianModel) -> Diagnostics | None:
        """Whether the noise is so small that h₀ is far from how an example's loss bends, so that steps may have gone too far."""
        bend, first = float(stiffness(model, model.start)), self.param_groups[0]
        if bend <= UNITS * first["hess_init"]:
            return None
        said = (
            f"hess_init={first['hess_init']:g} is of losses that bend by about one, and with this noise an example's bends by "
            f"{bend:.3g}, so that steps may have gone too far: take hess_init={bend:.3g} and lr={0.1 / bend:.3g}"
        )
        log.warning("IVON: %s", said)
        return Diagnostics(messages=(said,), ok=False)

    def _judged(self) -> Diagnostics | None:
        first = self.param_groups[0]
        steps, decay = first["step"], first["betas"][1]
        metrics: Weights = {}
        for group in self.param_groups:
            curvature = {k: self.state[p]["curvature"] for k, p in self._begin(group).items()}
            metrics.update(
                GaussianPrior(dict.fromkeys(curvature, group["prior_precision"])).metric(curvature, self.num_data)
            )
        decided = decided_by(kept_share(decay, steps) * first["hess_init"], metrics)
        return judged(decay**steps, steps, f"betas[1]={decay}", "hess_init", "1 - 5 / steps forgets it", decided)
