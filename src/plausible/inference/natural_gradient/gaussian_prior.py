"""The normal prior that natural-gradient methods divide by, and the metric it makes with a curvature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...core.posteriors import Diagonal
from ...core.priors import Flat
from ...weights.algebra import Number, Weights, add_, scale_, under_vmap
from ...weights.rng import Keys


@dataclass(frozen=True)
class GaussianPrior:
    """w ~ N(mean, 1 / precision), independently.

    Attributes:
        precision: δ of every unknown: a number, or a tensor in its shape. 0 is no prior at all.
        mean: Of unknowns that are believed to be elsewhere than at zero, None where there are none.
    """

    precision: Mapping[str, float | Tensor]
    mean: Mapping[str, Tensor] | None = None

    @classmethod
    def of(cls, model: Any, like: Mapping[str, Tensor]) -> Self:
        """The prior of a model's unknowns; those of the likelihood (a noise scale) and of a bare density have precision 0.

        Args:
            model: Whose.
            like: Weights in the shapes and on the device of the unknowns.
        """
        groups = model.groups if isinstance(model, BayesianModel) else []
        found: dict[str, float | Tensor] = dict.fromkeys(like, 0.0)
        mean = None
        for g in groups:
            if g.joint:
                mean = _of_posterior(model, g.prior, found, like)
                continue
            for k in g.names:
                found[k] = _precision(g, k, like[k])
        return cls(found, mean)

    def metric(self, curvature: Mapping[str, Tensor], num_data: Number, damping: Number = 0.0) -> Weights:
        """s + δ / N + γ."""
        offsets = {k: p / num_data + damping for k, p in self.precision.items()}
        if under_vmap() or any(isinstance(o, Tensor) for o in offsets.values()):
            return {k: s + offsets[k] for k, s in curvature.items()}
        sums = torch._foreach_add(list(curvature.values()), [float(offsets[k]) for k in curvature])
        return dict(zip(curvature, sums, strict=True))

    @property
    def unbelieved(self) -> list[str]:
        """The unknowns without a prior."""
        return [k for k, p in self.precision.items() if not isinstance(p, Tensor) and p == 0.0]

    @property
    def number(self) -> float | None:
        """δ, where it is one number for all unknowns and they are believed to be around zero."""
        first = next(iter(self.precision.values()))
        if self.mean is not None or isinstance(first, Tensor):
            return None
        return first if all(not isinstance(p, Tensor) and p == first for p in self.precision.values()) else None

    def pull(self, params: Mapping[str, Tensor]) -> Weights:
        """δ (w − mean), minus the slope of the log prior."""
        mean = self.mean or {}  # a noise scale is in no posterior of a model that knew it
        weights = {k: w - mean[k] if k in mean else w for k, w in params.items()}
        if under_vmap() or any(isinstance(p, Tensor) for p in self.precision.values()):
            return {k: self.precision[k] * w for k, w in weights.items()}
        values = torch._foreach_mul(list(weights.values()), [float(self.precision[k]) for k in weights])
        return dict(zip(weights, values, strict=True))

    def add_pull_(self, target: Weights, params: Mapping[str, Tensor], scale: Number) -> Weights:
        """target ← target + scale · δ (w − mean), in place; in one pass where all weights have one prior around zero."""
        if self.number is not None:
            return add_(target, params, scale * self.number)
        return add_(target, self.pull(params), scale)

    def likelihood_gradient(
        self, slopes: Weights, params: Mapping[str, Tensor], num_data: Number, temperature: float
    ) -> Weights:
        """ĝ = −(T · slope of the log joint + δ (w − mean)) / N: of the mean negative log likelihood alone.

        Where an unknown has no normal prior the pull of whatever it has stays in. Writes into `slopes`.
        """
        return self.add_pull_(scale_(slopes, -temperature / num_data), params, -1.0 / num_data)


def deviations(metric: Mapping[str, Tensor], num_data: Number) -> Weights:
    """σ = 1 / √(N metric); at temperature T give N / T."""
    if under_vmap():
        return {k: (m * num_data).rsqrt() for k, m in metric.items()}
    values = torch._foreach_mul(list(metric.values()), num_data)
    torch._foreach_sqrt_(values)
    torch._foreach_reciprocal_(values)
    return dict(zip(metric, values, strict=True))


def times(weights: Mapping[str, Tensor], factor: Number) -> Weights:
    """factor · weights, in memory of its own."""
    if under_vmap():
        return {k: w * factor for k, w in weights.items()}
    return dict(zip(weights, torch._foreach_mul(list(weights.values()), factor), strict=True))


def scattered(scale: Weights, rng: Keys) -> Weights:
    """σ ε."""
    noise = rng.normal_like(scale)
    if under_vmap():
        return {k: s * noise[k] for k, s in scale.items()}
    return dict(zip(scale, torch._foreach_mul(list(scale.values()), [noise[k] for k in scale]), strict=True))


def displaced(params: Weights, shift: Mapping[str, Tensor]) -> Weights:
    """μ + shift, as new tensors."""
    if under_vmap():
        return {k: w + shift[k] for k, w in params.items()}
    return dict(zip(params, torch._foreach_add(list(params.values()), [shift[k] for k in params]), strict=True))


def _precision(group: Any, name: str, like: Tensor) -> float | Tensor:
    prior = group.prior
    if isinstance(prior, Flat) or isinstance(getattr(prior, "prior", None), Flat):
        return 0.0
    fixed = getattr(prior, "fixed_precision", None)
    number = fixed(like.shape) if callable(fixed) else None
    if number is not None:
        return number
    own = None if group.factors or group.unknowns() else getattr(prior, "precision", None)
    if own is None:
        raise NotSupported(
            f"VOGN, OGN, IVON and K-FAC need a normal prior of known scale, and {name} has {prior!r}; take "
            "pl.priors.Normal(scale=...), pl.priors.Flat() or a Diagonal posterior, or infer with pl.NaturalGradientVI, "
            "pl.ADVI or pl.HMC"
        )
    return own(like)


def _of_posterior(
    model: BayesianModel, prior: Any, found: dict[str, float | Tensor], like: Mapping[str, Tensor]
) -> Weights:
    """Yesterday's mean, with its precisions written into `found`."""
    if not isinstance(prior, Diagonal):
        raise NotSupported(
            f"VOGN, OGN, IVON and K-FAC take a Diagonal posterior as the prior, got {type(prior).__name__}; "
            "pl.NaturalGradientVI, pl.ADVI and pl.HMC take any that has a density"
        )
    placed = model.belief.posterior_on(next(iter(like.values())).device, prior)
    found.update({k: s.pow(-2) for k, s in placed.scale.items()})
    return placed.mean
