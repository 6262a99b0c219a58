"""The prior's part of the curvature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...core.posteriors import Diagonal
from ...weights.algebra import Weights


def prior_curvature(model: BayesianModel, params: Mapping[str, Tensor]) -> Weights:
    """−∂² [log p(w) + T log |Jacobian|] / ∂w² of every unknown: priors are densities of single weights, so this is all.

    The curvature between a weight and the unknown scale of its own prior is left out.
    """
    refuse_correlated(model)
    natural = model.constrain({k: params[k] for k in model.hyperpriors})
    found: Weights = {}
    for g in model.groups:
        if g.joint:
            found.update(_of_a_posterior(g.prior, params))
            continue
        found.update({n: _of_a_prior(g.density(n, natural), params[n]) for n in g.names})
    for name in (k for k in model.hyperpriors if k not in found):

        def rest(own: Tensor, name: str = name) -> Tensor:
            at = {**params, name: own}
            return model.log_prior(at) + model.temperature * model.log_jacobian(at)

        found[name] = -_second_derivatives(rest, params[name])
    return {k: found[k] for k in params}


def _of_a_prior(prior: Any, w: Tensor) -> Tensor:
    precision = getattr(prior, "precision", None)
    if precision is not None:
        return precision(w).detach()
    return -_second_derivatives(lambda own: prior.log_prob(own).sum(), w)


def _of_a_posterior(prior: Any, params: Mapping[str, Tensor]) -> Weights:
    return {
        n: prior.scale[n].to(params[n].device) ** -2 if n in prior.scale else torch.zeros_like(params[n])
        for n in prior.mean
    }


def refuse_correlated(model: BayesianModel) -> None:
    """Priors whose curvature is no diagonal."""
    for prior in (g.prior for g in model.groups if g.joint and not isinstance(g.prior, Diagonal)):
        raise NotSupported(
            f"a {type(prior).__name__} posterior as the prior is correlated, which Laplace does not take yet; a "
            "Diagonal one works, and so do HMC and SWAG"
        )
    for prior in (g.prior.standard if g.factors else g.prior for g in model.groups):
        if not getattr(prior, "elementwise", True):
            raise NotSupported(
                f"the entries of {prior!r} are correlated, which Laplace does not take yet; HMC and SWAG do"
            )


def refuse_products(model: BayesianModel, structure: str) -> None:
    """Kronecker factors of weights that are products of unknowns: those would be diagonal."""
    if structure == "kronecker" and model.belief.non_centred:
        raise NotSupported(
            f"Kronecker factors are of natural weights, and {next(iter(model.belief.non_centred))} is kept non-centred; take "
            'Hierarchical(..., centred=True), or structure="diagonal", "low-rank" or "full"'
        )


def _second_derivatives(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Of a sum over entries that do not meet: the gradient's sum has them for its gradient."""
    return torch.func.grad(lambda w: torch.func.grad(function)(w).sum())(at)
