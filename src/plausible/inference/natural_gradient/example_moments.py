"""Means over examples of gradients and of their squares, at several draws of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...curvature import gradient_and_second_moments
from ...weights.algebra import Number, Weights, add_
from .draws import mean_at
from .gaussian_prior import GaussianPrior, times


def refuse_bare_density(model: Any, name: str) -> None:
    """A log density has no examples to square the gradients of."""
    if not isinstance(model, BayesianModel):
        raise NotSupported(
            f"{name} squares the gradients of single examples, which a LogDensity does not have; IVON and "
            "NaturalGradientVI take one"
        )


def mean_moments(
    model: Any, draws: Sequence[Weights], batch: Any, prior: GaussianPrior, parts: int = 1, hyperpriors: Number = 1.0
) -> tuple[Tensor, Weights, Weights]:
    """E[log joint], ĝ = mean of gᵢ and ĥ = mean of gᵢ², over draws and the examples of the part that a draw sees.

    gᵢ is the gradient of example i's negative log likelihood. What examples add up to is divided by N here and nowhere else:
    for several processes these are the sums to all-reduce. The ĝ of unknowns that have no normal prior, such as a noise scale,
    has the pull of whatever they have in it, times `hyperpriors`.
    """
    own = prior.unbelieved

    def moments(bound: BayesianModel, point: Weights, seen: Any) -> tuple[Tensor, Weights, Weights]:
        log_joint, slopes, squares = _slope_and_squares(bound, point, seen, own, hyperpriors)
        gradient = prior.likelihood_gradient(slopes, point, model.num_data, model.temperature)
        return log_joint, gradient, times(squares, 1.0 / model.num_data)

    return mean_at(moments, model, draws, batch, parts)


def _slope_and_squares(
    model: BayesianModel, params: Weights, batch: Any, own: Sequence[str], hyperpriors: Number
) -> tuple[Tensor, Weights, Weights]:
    """The log joint, its slope (with a multiple of the prior's in the unknowns `own`), and Σᵢ wᵢ gᵢ², from one pass."""
    key = model.rng.key() if model.needs_key and model.rng is not None else None
    found = gradient_and_second_moments(model, params, tuple(batch), key)
    share = 1.0 / model.temperature
    value, slopes = found.log_likelihood * share, times(found.gradient, share)
    if model._scored:
        return *model.add_remainder(value, params, slopes), found.squares
    value = value + model.log_prior(params) * share + model.log_jacobian(params)
    pull = model.prior_slope(params)
    pull |= {k: (pull[k] * hyperpriors).to(pull[k].dtype) for k in own}
    return value, add_(slopes, pull), found.squares
