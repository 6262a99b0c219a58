"""How far steps by Kronecker factors may go until the curvature is looked at again.

A step's trust is by how many nats per example it may change predictions. The least of it is fit for deep networks, whose
curvature may grow by orders of magnitude between two looks, and for data that the likelihood expects. Residuals far larger
than it expects are many nats away: there trust grows while looks find the curvature that steps have gone by, and falls back
where they do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...weights.algebra import Weights
from .kronecker_preconditioner import Factors, along

MOST = 1e-2  # nats per example, of data that the likelihood expects
ORDINARY = 5.0  # times what the likelihood expects are squared residuals that need no more
CONFIRMED, REFUTED = 1.5, 3.0  # curvature along the way since the last look, beside the one that steps went by
GROWTH, FALL = 2.0, 0.25


def first(params: Weights, least: float) -> dict[str, Any]:
    """What a state holds of it before the first look."""
    number = torch.full((), least, dtype=torch.float64, device=next(iter(params.values())).device)
    return {
        "trust": number,
        "misfit": torch.full_like(number, torch.inf),
        "seen_at": {k: w.clone() for k, w in params.items()},
    }


def renewed(
    own: dict[str, Any], params: Weights, old: Factors, found: Factors, misfit: Tensor, least: float
) -> dict[str, Any]:
    """The same after a look.

    Args:
        own: What the state holds.
        params: Where the look was.
        old: The factors that steps went by since the last one.
        found: Those of this one.
        misfit: Squared residuals, beside what the likelihood expects of them.
        least: The least of it.
    """
    way = {k: w - own["seen_at"][k] for k, w in params.items()}
    before, now = along(old, way), along(found, way)
    factor = torch.where(now > REFUTED * before, FALL, torch.where(now < CONFIRMED * before, GROWTH, 1.0))
    misfit = torch.fmin(own["misfit"], misfit.to(own["misfit"]))  # one that grew is no reason for longer steps
    large = (misfit > ORDINARY) & misfit.isfinite()  # it is infinite while no look could tell
    most = torch.where(large, MOST * misfit / ORDINARY, 0.0).clamp(min=least)
    trust = torch.minimum((own["trust"] * factor.to(own["trust"])).clamp(min=least), most)
    return {"trust": trust, "misfit": misfit, "seen_at": {k: w.clone() for k, w in params.items()}}
