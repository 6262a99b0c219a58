"""Between the units of a table and those in which one prior and one learning rate suit every network.

Inputs, and the targets of a regression, have mean 0 and deviation 1 inside; predictions are mapped back.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from ..core import likelihoods
from ..core.predictive import Predictive

# Where the outputs are a place and the noise a multiple of one law, targets can be moved and stretched.
LOCATION_SCALE = (likelihoods.Normal, likelihoods.HeteroscedasticNormal, likelihoods.StudentT)


def outputs_per_target(likelihood: Any) -> int:
    """Two where the network also predicts the noise."""
    own_scale = isinstance(likelihood, likelihoods.CensoredNormal) and likelihood.scale is None
    return 2 if own_scale or isinstance(likelihood, likelihoods.HeteroscedasticNormal) else 1


def mean_and_scale(columns: np.ndarray, weights: np.ndarray | None, wanted: bool) -> tuple[np.ndarray, np.ndarray]:
    """What makes each column's weighted mean 0 and deviation 1; nothing, where that is not wanted."""
    columns = columns.astype(np.float64)
    if not wanted:
        return np.zeros(columns.shape[1]), np.ones(columns.shape[1])
    mean = np.average(columns, axis=0, weights=weights)
    scale = np.sqrt(np.average((columns - mean) ** 2, axis=0, weights=weights))
    # A column that never changes has no scale of its own; what rounding leaves of it must not be blown up.
    constant = scale <= 1e-12 * np.abs(mean)
    return mean, np.where(constant, 1.0, scale)


def moved_and_stretched(standardised: Predictive, mean: np.ndarray, scale: np.ndarray, flat: bool) -> Predictive:
    """The predictive of mean + scale · y, where y has the standardised one; `flat` drops the axis of a lone target."""
    likelihood: Any = standardised.likelihood
    outputs, unknowns = standardised.outputs, dict(standardised.unknowns)
    if isinstance(likelihood, likelihoods.HeteroscedasticNormal):
        # Every draw has its own scale at every row: normal noise whose scale is known.
        noise = standardised._each(lambda own, out: own.distribution(out).stddev)
        outputs = outputs.chunk(2, -1)[0]
        likelihood = likelihoods.Normal(scale="learn")
    elif "scale" in unknowns:
        noise = unknowns["scale"].reshape(-1, *[1] * (outputs.dim() - 1)).expand_as(outputs)
    else:
        noise = torch.as_tensor(likelihood.scale, dtype=outputs.dtype, device=outputs.device).expand_as(outputs)
        likelihood = copy.copy(likelihood)
        object.__setattr__(likelihood, "scale", likelihoods.Normal(scale="learn").scale)
    stretch, shift = (torch.as_tensor(v, dtype=outputs.dtype, device=outputs.device) for v in (scale, mean))
    outputs, unknowns["scale"] = outputs * stretch + shift, noise * stretch
    if flat:
        outputs, unknowns["scale"] = outputs.squeeze(-1), unknowns["scale"].squeeze(-1)
    return Predictive(
        outputs,
        likelihood,
        weights=standardised.weights,
        unknowns=unknowns,
        strata=standardised.strata,
        exact=standardised.exact,
    )
