"""The evidence lower bound of an approximation, and the slopes at its draws, on all data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.evidence import Evidence
from ...core.hyperpriors import LogFlat
from ...core.method import Sweep
from ...core.model import BayesianModel
from ...core.priors import Flat
from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys, run_key
from .draws import slopes_at
from .families import Family

EXAMINED = 0x656C626F  # the stream of the draws, the same for every run: two runs differ by what they found
MOST_DRAWS, FEWEST_DRAWS = 256, 16
EXAMPLES = 1 << 20  # passes of one example through the network, all draws together
FLOATS = 1 << 27  # of slopes that are held


@dataclass(frozen=True)
class Examined:
    """Draws of q and what the model says of them.

    Attributes:
        family: Of q.
        spread: Of q.
        gaps: log p(D, ζ) − log q(ζ) of each draw (S,): their mean is the bound, and where q is exact they are all one number.
        slopes: ∇ log p(D, ζ) − ∇ log q(ζ) of each draw (S, P).
        deviations: Draws minus the mean (S, P).
        z: The noise they were made of.
    """

    family: Family
    spread: Weights
    gaps: Tensor
    slopes: Tensor
    deviations: Tensor
    z: Tensor

    def evidence(self) -> Evidence:
        """The bound with its Monte Carlo error."""
        error = float(self.gaps.std()) / math.sqrt(len(self.gaps))
        return Evidence(self.gaps.mean().cpu(), "lower bound", error)


def examine(model: Any, family: Family, mean: Weights, spread: Weights, sweep: Sweep) -> Examined:
    """Draw, and look at all data with each draw."""
    sigma, centre = spread["log_scale"].exp(), to_vector(mean)
    key = run_key(EXAMINED, 0, device=sigma.device)
    count = _number_of_draws(model, centre.shape[0])
    z = Keys(key, key[0] * 0).normal((count, family.noise(centre.shape[0])), sigma.dtype, sigma.device)
    deviations = family.deviations(spread, sigma, z)
    values, slopes = _on_all_data(model, centre + deviations, mean, sweep)
    pull = family.pull(spread, sigma, z, deviations)
    quadratic = (deviations.double() * pull.double()).sum(-1)
    log_q = -0.5 * (quadratic + centre.shape[0] * math.log(2 * math.pi)) - family.half_log_det(spread).double()
    return Examined(family, spread, values - log_q, slopes + pull, deviations, z)


def _number_of_draws(model: Any, unknowns: int) -> int:
    """As many as all data and the memory for their slopes allow."""
    allowed = min(EXAMPLES // max(1, int(model.num_data or 1)), FLOATS // unknowns)
    return max(FEWEST_DRAWS, min(MOST_DRAWS, allowed))


def _on_all_data(model: Any, points: Tensor, like: Weights, sweep: Sweep) -> tuple[Tensor, Tensor]:
    """Log joints (S,) in double precision and their slopes (S, P)."""
    if not isinstance(model, BayesianModel):
        values, slopes = slopes_at(model, points, like, None)
        return values.double(), slopes
    total: Any = 0.0
    slopes = torch.zeros_like(points)
    parts = 0
    for batch in sweep():
        values, found = slopes_at(model, points, like, batch)
        total, slopes, parts = total + values.double(), slopes + found, parts + 1
    if parts > 1:  # every batch brought the whole prior along
        values, found = torch.vmap(lambda point: _prior(model, point, like))(points)
        total, slopes = total - (parts - 1) * values.double(), slopes - (parts - 1) * found
    return total, slopes


def _prior(model: BayesianModel, point: Tensor, like: Weights) -> tuple[Tensor, Tensor]:
    params = from_vector(point, like)
    value = model.log_prior(params) / model.temperature + model.log_jacobian(params)
    slopes = model.prior_slope(params)
    return value, to_vector({k: slopes[k] for k in like})


def is_density(model: Any) -> bool:
    """Whether the priors of all unknowns are densities; a flat one is none, so that the bound would be of nothing."""
    groups = getattr(model, "groups", ())
    if any(isinstance(g.prior, Flat) or isinstance(getattr(g.prior, "prior", None), Flat) for g in groups):
        return False
    # A noise that yesterday's posterior knows has a density there.
    return not isinstance(model, BayesianModel) or not any(isinstance(h, LogFlat) for h in model.belief.free.values())
