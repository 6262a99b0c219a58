"""Quantiles and CRPS of a mixture, from its distribution function or in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BISECTIONS = {torch.float64: 80}  # halvings until the bracket is as narrow as the dtype can say
TAIL = 1e-9  # probability past the ends of a numerical integral; its contribution is about its square


def quantile_of(cdf: Callable[[Tensor], Tensor], q: float, centre: Tensor, spread: Tensor, *, discrete: bool) -> Tensor:
    """Invert a distribution function by bisection; `centre` and `spread` only say where to look first."""
    centre = torch.where(torch.isfinite(centre), centre, 0.0)
    width = torch.where(torch.isfinite(spread) & (spread > 0), spread, 1.0)
    low, high = centre - width, centre + width
    for _ in range(200):
        too_high, too_low = cdf(low) >= q, cdf(high) < q
        if not bool((too_high | too_low).any()):
            break
        low = torch.where(too_high, low - width, low)
        high = torch.where(too_low, high + width, high)
        width = 2 * width
    for _ in range(BISECTIONS.get(centre.dtype, 50)):
        middle = (low + high) / 2
        below = cdf(middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    # A count's distribution function jumps at the count itself, which the upper end approaches from above.
    return torch.floor(high + 1e-6 * (1 + high.abs())) if discrete else (low + high) / 2


def crps_of_normals(means: Tensor, scales: Tensor, weights: Tensor, y: Tensor) -> Tensor:
    """E|X − y| − ½ E|X − X'| for a mixture of normals (S, ...), in closed form (Grimit et al., 2006)."""
    spread = torch.zeros_like(y)
    for i in range(means.shape[0]):  # one row of the S × S pairs at a time: memory stays that of the outputs
        both = _expected_distance(means[i] - means, (scales[i] ** 2 + scales**2).sqrt())
        spread = spread + weights[i] * torch.tensordot(weights, both, dims=1)
    return torch.tensordot(weights, _expected_distance(y - means, scales), dims=1) - 0.5 * spread


def _expected_distance(mean: Tensor, scale: Tensor) -> Tensor:
    """E|N(mean, scale²)|."""
    z = mean / scale
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return mean * torch.special.erf(z / math.sqrt(2)) + 2 * scale * density


def crps_by_integration(
    cdf: Callable[[Tensor], Tensor], quantile: Callable[[float], Tensor], y: Tensor, *, discrete: bool, nodes: int = 48
) -> Tensor:
    """∫ (F(x) − 1{x ≥ y})² dx: a sum over counts, or Gauss-Legendre between quantiles."""
    if discrete:
        top = int(torch.maximum(quantile(1 - TAIL).max(), y.max()).item())
        score = torch.zeros_like(y)
        for k in range(top + 1):
            score = score + (cdf(torch.full_like(y, float(k))) - (y <= k).to(y.dtype)) ** 2
        return score
    # Tails are long and flat and members may lie far apart: panels between quantiles put the nodes where F moves, and
    # an edge at y keeps the jump out of every panel.
    levels = (TAIL, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - TAIL)
    edges = torch.stack([*(quantile(level) for level in levels), y]).sort(dim=0).values
    points, shares = np.polynomial.legendre.leggauss(nodes)
    score = torch.zeros_like(y)
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        for p, s in zip(points.tolist(), shares.tolist(), strict=True):
            x = (a + b) / 2 + (b - a) / 2 * p
            score = score + (b - a) / 2 * s * (cdf(x) - (x >= y).to(y.dtype)) ** 2
    return score
