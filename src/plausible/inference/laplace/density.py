"""The prior density of those unknowns that vary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to

from ...core.model import BayesianModel
from ...core.posteriors import Diagonal
from ...core.prior_groups import PriorGroup
from ...core.priors import Flat


def log_density(model: BayesianModel, params: Mapping[str, Tensor], names: Collection[str]) -> Tensor | None:
    """log p of the unknowns `names` on their unconstrained scale, given the rest, which is part of the model.

    None where a flat prior is no density.
    """
    with torch.no_grad():
        natural = model.constrain({k: params[k] for k in model.hyperpriors})
        total = torch.zeros((), dtype=torch.float64)
        for name, hyperprior in model.hyperpriors.items():
            if name in names and not any(g.joint and name in g.names for g in model.groups):
                jacobian = biject_to(hyperprior.constraint).log_abs_det_jacobian(params[name], natural[name])
                total = total + (hyperprior.log_prob(natural[name]) + jacobian).sum().double().cpu()
        for g in model.groups:
            own = [n for n in g.names if n in names]
            if own:
                found = _log_prior(g, params, natural, own)
                if found is None:
                    return None
                total = total + found.double().cpu()
    return total


def _log_prior(g: PriorGroup, params: Mapping[str, Tensor], natural: Mapping[str, Tensor], own: list[str]) -> Any:
    if g.joint:  # yesterday's posterior: whatever did not vary in it has no density
        prior = g.prior.to(params[own[0]].device)
        if not isinstance(prior, Diagonal) or not prior.free.keys() >= set(own):
            return None
        return sum(
            torch.distributions.Normal(prior.mean[n], prior.scale[n], validate_args=False).log_prob(params[n]).sum()
            for n in own
        )
    if is_flat(g.prior):
        return None
    return sum(g.density(n, natural).log_prob(params[n]).sum() for n in own)


def is_flat(prior: Any) -> bool:
    """Whether a prior says nothing, by itself or inside `fan_in`."""
    return isinstance(prior, Flat) or isinstance(getattr(prior, "prior", None), Flat)
