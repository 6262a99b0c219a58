"""The improved variational online Newton method (Shen et al., 2024) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Diagonal
from ..inference.natural_gradient.answer import checked
from ..inference.natural_gradient.gaussian_prior import GaussianPrior, deviations
from ..inference.natural_gradient.ivon import ivon_step_
from ..weights.algebra import Weights
from ..weights.rng import Keys
from .optimizer import BayesianOptimizer, Part, group_weights
from .watcher import on_gradients


class IVON(BayesianOptimizer):
    """Weights are drawn from q = N(μ, 1 / (N (h + δ/N))); gradients there give the direction and, by Stein, the Hessian h.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate, as published: it multiplies h₀ + δ/N.
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

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 0.5, betas: tuple[float, float] = (0.9, 0.9995),
        prior_precision: float | Mapping[str, float] = 1.0, hess_init: float = 0.3, clip_radius: float | None = None,
        num_samples: int = 1, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        require(all(0 <= b < 1 for b in betas), f"betas must be in [0, 1), got {betas}")
        require(hess_init > 0, f"hess_init must be positive, got {hess_init}")
        require(clip_radius is None or clip_radius > 0, f"clip_radius must be positive, got {clip_radius}")
        numbers = {"lr": lr, "betas": tuple(betas), "hess_init": hess_init, "clip_radius": clip_radius}
        super().__init__(
            network, numbers, num_data=num_data, prior_precision=prior_precision, reduction=reduction,
            num_samples=num_samples, seed=seed,
        )  # fmt: skip
        on_gradients(self, IVON._came_back)

    def _came_back(self, name: str, weight: Tensor) -> None:
        """ĝ (w − μ): what Stein's identity takes the average of, as soon as ĝ is there."""
        mean = self.ledger.mean[name] if self.ledger.mean is not None else self.state[weight].get("mean")
        if mean is not None and weight.grad is not None:
            own = self.ledger.now.tensors.setdefault("products", {})
            own[name] = (weight.detach() - mean).mul_(weight.grad)  # of all that has come so far

    def _metrics(self) -> Weights:
        """h + δ/N of every weight."""
        found: Weights = {}
        for group in self.param_groups:
            weights = group_weights(group)
            for p in weights.values():
                own = self.state[p]
                if "curvature" not in own:
                    own["momentum"] = torch.zeros_like(p, requires_grad=False)
                    own["curvature"] = torch.full_like(p, group["hess_init"], requires_grad=False)
            curvature = {k: self.state[p]["curvature"] for k, p in weights.items()}
            prior = GaussianPrior(dict.fromkeys(weights, group["prior_precision"]))
            found.update(prior.metric(curvature, self.num_data))
        return found

    def _rescale(self) -> float:
        """The average of h₀ + δ/N over all weights."""
        sizes = [(sum(p.numel() for p in group_weights(g).values()), g) for g in self.param_groups]
        total = sum(n * (g["hess_init"] + g["prior_precision"] / self.num_data) for n, g in sizes)
        return total / sum(n for n, _ in sizes)

    def scales(self) -> Weights:
        """The standard deviations of q."""
        return deviations(self._metrics(), self.num_data)

    def _deviation(self, rng: Keys) -> Weights:
        noise, scales = rng.normal_like(self.weights()), self.scales()
        torch._foreach_mul_([noise[k] for k in scales], list(scales.values()))
        return noise

    def _update(self, parts: list[Part]) -> None:
        metrics, weights, rescale = self._metrics(), self.weights(), self._rescale()
        for part in parts:
            group, names = part.group, list(part.params)
            metric = {k: metrics[k] for k in names}
            hessian = self.averages("products", 1, names)
            torch._foreach_mul_(list(hessian.values()), list(metric.values()))
            torch._foreach_mul_(list(hessian.values()), float(self.num_data))
            state = {
                "params": part.params,
                "momentum": {k: self.state[weights[k]]["momentum"] for k in names},
                "curvature": {k: self.state[weights[k]]["curvature"] for k in names},
            }
            ivon_step_(
                state, part.gradient, hessian, metric,
                rate=group["lr"] * rescale, count=group["step"] + 1, momentum=group["betas"][0], decay=group["betas"][1],
                num_data=float(self.num_data), prior=part.prior, clip_radius=group["clip_radius"],
            )  # fmt: skip

    def _posterior(self, model: BayesianModel, mean: Weights) -> Diagonal:
        scales = self.scales()
        return checked(Diagonal(model, mean, {k: scales[k] for k in mean}))
