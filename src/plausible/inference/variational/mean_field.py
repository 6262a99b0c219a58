"""The evidence lower bound of independent normals, as a function of their means and deviations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ...core.model import BayesianModel
from ...core.target import Batch, Target
from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys
from .layer_noise import FLIPOUT, Plan, make_plan, noisy_layers

MEAN, RHO = "mean.", "rho."
LOG_2PI = math.log(2 * math.pi)
HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)


class MeanField(Target):
    """L(μ, ρ) = E_q[log p(w, D)] + H[q],  q = N(μ, softplus(ρ)²), on the whole-data scale.

    Its unknowns are `mean.*` and `rho.*` of the model's. The expectation is an average over draws, except where a normal
    prior has a formula for its part.

    Args:
        model: Whose log joint it is.
        estimator: "weights" draws weights; "local" and "flipout" draw through the outputs of layers.
        num_samples: Draws to average over.
    """

    def __init__(self, model: Target, estimator: str, num_samples: int):
        self.model, self.estimator, self.num_samples = model, estimator, num_samples
        self.num_data, self.num_steps, self.inline = model.num_data, model.num_steps, model.inline

    @property
    def start(self) -> Weights:
        """The model's start as means, and deviations of log 2."""
        own = self.model.start
        return joined(own, {k: torch.zeros_like(w) for k, w in own.items()})

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Means, and deviations in place of ρ."""
        return {k: F.softplus(v) if k.startswith(RHO) else v for k, v in params.items()}

    @property
    def gradient_scale(self) -> float:
        """The model's."""
        return self.model.gradient_scale

    @property
    def needs_key(self) -> bool:
        """It draws."""
        return True

    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """An unbiased estimate of the bound, for a batch whose weights sum to N."""
        assert key is not None
        mean = {k: params[MEAN + k] for k in self.model.start}
        scale = deviations({k: params[RHO + k] for k in self.model.start})
        rng = Keys(key, key[0] * 0)
        draws = [self._log_to_vector(mean, scale, batch, rng) for _ in range(self.num_samples)]
        return torch.stack(draws).mean() + entropy(scale)

    def _log_to_vector(self, mean: Weights, scale: Weights, batch: Batch, rng: Keys) -> Tensor:
        """log p(w, D) of one draw, and the expectation of what has a formula."""
        model, own_key = self.model, rng.key()
        if not isinstance(model, BayesianModel):
            return model.objective(_drawn(mean, _shifts(scale, rng)), batch, own_key)
        plan = make_plan(model, mean, batch, own_key, self.estimator)
        precisions = prior_precisions(model, mean)
        # What is drawn through the outputs, under a prior with a formula, needs no draw of its own.
        wanted = [k for k in mean if plan.get(k, FLIPOUT) == FLIPOUT or k not in precisions]
        shifts = _shifts({k: scale[k] for k in wanted}, rng)
        draw = _drawn(mean, shifts)
        likelihood = self._log_likelihood(plan, {**draw, **{k: mean[k] for k in plan}}, scale, shifts, batch, own_key)
        at = {**draw, **{k: mean[k] for k in precisions}}
        if len(precisions) == len(mean):
            prior = expected_log_normal(precisions, mean, scale)
        else:
            prior = model.log_prior(at)
            if precisions:  # E[log N(w; 0, s²)] = log N(μ; 0, s²) − σ² / 2 s²
                spread = to_vector({k: scale[k] for k in precisions})
                prior = prior - 0.5 * (to_vector(precisions) * spread.square()).sum()
        return (likelihood + prior) / model.temperature + model.log_jacobian(at)

    def _log_likelihood(
        self, plan: Plan, params: Weights, scale: Weights, shifts: Weights, batch: Batch, key: Tensor
    ) -> Tensor:
        model: Any = self.model
        around = noisy_layers(plan, scale, shifts) if plan else None
        return model.bound(around=around)._weighted_log_likelihoods(params, tuple(batch), key).sum()


def joined(mean: Mapping[str, Tensor], rho: Mapping[str, Tensor]) -> Weights:
    """Both as one dictionary of unknowns."""
    return {**{MEAN + k: w for k, w in mean.items()}, **{RHO + k: r for k, r in rho.items()}}


# What is done to each of many small tensors is done to one vector here: a GPU waits less for a few operations than for many.


def deviations(rho: Mapping[str, Tensor]) -> Weights:
    """σ."""
    return from_vector(F.softplus(to_vector(rho)), rho)


def entropy(scale: Mapping[str, Tensor]) -> Tensor:
    """H[q] = Σ log σ + ½ log 2πe."""
    together = to_vector(scale)
    return together.log().sum() + HALF_LOG_2PI_E * together.numel()


def expected_log_normal(precisions: Mapping[str, Tensor], mean: Weights, scale: Weights) -> Tensor:
    """Σ E_q[log N(w; 0, 1 / δ)] = ½ Σ log δ / 2π − δ (μ² + σ²)."""
    parts = (precisions, mean, scale)
    delta, mu, sigma = (to_vector({k: part[k] for k in precisions}) for part in parts)
    return 0.5 * (delta.log() - LOG_2PI - delta * (mu.square() + sigma.square())).sum()


def prior_precisions(model: BayesianModel, like: Mapping[str, Tensor]) -> Weights:
    """1 / s² of the weights whose prior is a normal that is known."""
    return {
        k: g.prior.precision(like[k])
        for g in model.groups
        if not g.joint and not g.unknowns() and getattr(g.prior, "precision", None) is not None
        for k in g.names
    }


def _shifts(scale: Mapping[str, Tensor], rng: Keys) -> Weights:
    noise = rng.normal_like(dict(scale))
    return {k: s * noise[k] for k, s in scale.items()}


def _drawn(mean: Mapping[str, Tensor], shifts: Mapping[str, Tensor]) -> Weights:
    return {k: m + shifts[k] if k in shifts else m for k, m in mean.items()}
