"""What a sweep over all data finds at one point: log joint, slope and curvature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.method import Sweep
from ...core.model import BayesianModel
from ...curvature import Curvature
from ...curvature.outputs import output_hessian
from ...weights import tree
from ...weights.algebra import Weights
from ...weights.rng import Keys, run_key

TARGETS = 0x6D6366  # the stream from which a Monte Carlo Fisher draws its targets


@dataclass(frozen=True)
class Found:
    """Sums over all data.

    Attributes:
        log_likelihood: Σᵢ wᵢ log p(yᵢ | xᵢ, w), without temperature.
        curvature: Of −Σᵢ wᵢ log p(yᵢ | xᵢ, w): a tree that depends on the structure.
        unknowns: The same for the likelihood's own unknowns.
        clipped: How negative the curvature in the outputs was, beside its largest eigenvalue.
    """

    log_likelihood: Tensor
    curvature: Any
    unknowns: Weights
    clipped: float


def survey(
    model: BayesianModel, params: Mapping[str, Tensor], sweep: Sweep, structure: str, kind: str, names: Sequence[str]
) -> Found:
    """Curvature of the weights `names` at `params`."""
    total: Any = None
    clipped, value = 0.0, 0.0
    own = [n for n in names if n in model.weight_names]
    device = next(iter(params.values())).device
    for place, batch in enumerate(sweep()):
        rng = Keys(run_key(TARGETS, 0, device=device), torch.tensor(place, device=device))
        here = Curvature(model, params, batch, kind, rng, own)
        part = {"curvature": _of(here, structure), "unknowns": here.unknowns()}
        total = part if total is None else tree.tree_map(torch.add, total, part)
        clipped = max(clipped, float(here.clipped))
        with torch.no_grad():
            value = value + (here.likelihood.log_prob(here.outputs, here.targets) * here.weights).sum().double()
    return Found(torch.as_tensor(value), total["curvature"], total["unknowns"], clipped)


def _of(here: Curvature, structure: str) -> Any:
    if structure == "low-rank":  # takes products instead
        here.clipped = output_hessian(here.likelihood, here.outputs.detach(), here.targets).clipped
        return {}
    if structure == "diagonal":
        return here.diagonal()
    if structure == "kronecker":
        return here.kronecker()
    return {"dense": here.dense()}


def whole_slope(model: BayesianModel, params: Mapping[str, Tensor], sweep: Sweep) -> tuple[Tensor, Weights]:
    """The log joint of all data and its slope in every unknown."""
    value: Any = 0.0
    slopes: Weights = {}
    zero = model.prior_slope(params)
    parts = 0
    for batch in sweep():
        log_joint, slope = model.slope(params, batch)
        value, parts = value + log_joint.double(), parts + 1
        slopes = {k: s + slopes[k] if slopes else s for k, s in slope.items()}
    # Every batch brought the whole prior along.
    with torch.no_grad():
        rest = model.log_prior(params) / model.temperature + model.log_jacobian(params)
    return value - (parts - 1) * rest, {k: s - (parts - 1) * zero[k] for k, s in slopes.items()}
