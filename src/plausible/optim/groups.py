"""Parameter groups: which weights are in one, and how a prior's patterns make them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.method import require
from ..core.model import BayesianModel
from ..inference.natural_gradient.gaussian_prior import GaussianPrior
from .checks import number
from .witness import NAME

log = logging.getLogger("plausible")


def group_weights(group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The network's weights of one parameter group, by name."""
    return {k: p for k, p in zip(group["param_names"], group["params"], strict=True) if k != NAME}


def grouped(names: Mapping[str, Tensor], precision: float | Mapping[str, float]) -> list[dict[str, Any]]:
    """One parameter group for every pattern of `prior_precision`."""
    table = precision if isinstance(precision, Mapping) else {"*": precision}
    left, groups = dict(names), []
    for pattern, value in table.items():
        if not hasattr(value, "__float__"):
            raise TypeError(f"prior_precision must be a number, 1 / scale² of a normal prior, got {value!r}")
        value = number("prior_precision", value)
        require(value >= 0, f"prior_precision must not be negative, got {value} for {pattern!r}")
        if not any(fnmatchcase(k, pattern) for k in names):
            raise ValueError(f"prior_precision has the pattern {pattern!r}, which matches none of {', '.join(names)}")
        covered = {k: p for k, p in left.items() if fnmatchcase(k, pattern)}
        left = {k: p for k, p in left.items() if k not in covered}
        if covered:
            groups.append({"params": list(covered.items()), "prior_precision": float(value)})
    if left:
        raise ValueError(f'prior_precision has no pattern for {", ".join(left)}; add "*" as the last one')
    return groups


def warn_of_another_prior(name: str, groups: Sequence[Mapping[str, Any]], model: BayesianModel) -> None:
    """Say where a model's prior is not the one that an optimiser drew weights towards."""
    own = {k: g["prior_precision"] for g in groups for k in group_weights(g)}
    try:
        prior = GaussianPrior.of(model, model.start)
    except NotSupported:
        log.warning("the model's prior is not one of independent normals, and %s had N(0, 1 / prior_precision)", name)
        return
    stated, centres = prior.precision, prior.mean or {}
    for k, precision in own.items():
        other = torch.as_tensor(stated[k], dtype=torch.float64)
        if k in centres and bool(centres[k].any()):
            log.warning("the model's prior of %s is not around zero, and %s had N(0, 1 / prior_precision)", k, name)
            return
        if not torch.allclose(other, torch.full_like(other, precision), rtol=1e-4, atol=0.0):
            log.warning(
                "the model's prior of %s has precision %.6g and %s had prior_precision=%.6g; give the model %s",
                k, float(other.mean()), name, precision,
                f"pl.priors.Normal(scale={precision**-0.5:.6g})" if precision else "pl.priors.Flat()",
            )  # fmt: skip
            return
