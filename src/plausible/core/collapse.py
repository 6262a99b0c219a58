"""Prior scales that have collapsed to zero, and with them all weights that they multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .diagnostics import Diagnostics
from .errors import NotSupported

COLLAPSED = 1e-3  # of the hyperprior's median
MOST_MASS = 0.05  # of the posterior that may lie below that
DRAWS, BLOCK = 256, 1 << 25  # in blocks of so many numbers: draws are of all weights, and a network may have millions


def collapsed_scales(posterior: Any, num_samples: int = DRAWS, seed: int = 0) -> dict[str, float]:
    """The share of the posterior's mass in which a prior's scale is below a thousandth of its hyperprior's median.

    By the name of the unknown. Of scales per unit, input or weight the largest counts: that most of them are small is what
    such priors are for.
    """
    model = posterior.model
    names = {k: h for k, h in getattr(model, "hyperpriors", {}).items() if k.startswith("prior.")}
    medians = {k: h.median for k, h in names.items() if h.median is not None}
    if not medians:
        return {}
    size = max(1, min(num_samples, BLOCK // max(1, sum(w.numel() for w in model.start.values()))))
    parts = []
    try:
        for block in range(0, num_samples, size):
            drawn = posterior.sample(min(size, num_samples - block), seed=seed + block)
            parts.append({k: drawn[k] for k in medians})
    except NotSupported:  # masks that are none of weights; scales are never masked
        parts = [{k: v.unsqueeze(0) for k, v in posterior.representative().items() if k in medians}]
    natural = model.constrain({k: torch.cat([part[k] for part in parts]) for k in medians})
    largest = {k: v.flatten(1).amax(1) if v.dim() > 1 else v for k, v in natural.items()}
    return {k: float((largest[k] < COLLAPSED * m).double().mean()) for k, m in medians.items()}


def with_collapsed_scales(posterior: Any, found: Diagnostics) -> Diagnostics:
    """Diagnostics that also tell of scales that have collapsed."""
    messages = [
        f"{name} has collapsed to zero: {share:.0%} of the posterior is below a thousandth of the hyperprior's median "
        f"({model_median(posterior, name):.2g}), so its weights are next to nothing and what they were to learn is left to the "
        "noise. Is the learning rate or step size too large, or the temperature low? Else take a hyperprior that vanishes at "
        "zero, LogNormal or InverseGamma, or a number"
        for name, share in collapsed_scales(posterior).items()
        if share > MOST_MASS
    ]
    return replace(found, messages=(*found.messages, *messages), ok=False) if messages else found


def model_median(posterior: Any, name: str) -> float:
    """The median of an unknown's hyperprior."""
    return posterior.model.hyperpriors[name].median
