"""Whether an approximation has stopped moving, and where it went: what `diagnostics()` says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.posteriors.gaussian import Gaussian
from ...weights.algebra import to_vector
from .elbo import Examined

RELATIVE_CHANGE = 0.01  # of the ELBO between windows, the paper's
LAST_WINDOWS = 5
COLLAPSED = 1e-3  # of a scale's start
DRAWS_PER_UNKNOWN = 4  # from which on the posterior's curvature is read off the draws


def judged(model: Any, posterior: Gaussian, found: Examined, windows: Tensor) -> Diagnostics:
    """The verdict.

    A rate that goes to zero stops any run, so a flat ELBO alone says little: the slope of the ELBO at the end, on all data,
    says how far the mean is from where it would settle, in deviations of q, and how far the scales are, relatively.
    """
    far = distances(found)
    relative, change = _change(windows)
    unknowns = found.deviations.shape[1]
    # Strict where a few unknowns are looked at one by one, a tenth of a deviation where there are hundreds.
    near = min(0.1, 0.01 * unknowns**0.5)
    finite = bool(found.gaps.isfinite().all())
    off = {k: v for k, (v, surely) in far.items() if not surely <= near}
    still = relative > RELATIVE_CHANGE
    value, error = float(found.gaps.mean()), float(found.gaps.std()) / len(found.gaps) ** 0.5
    messages = [
        f"ELBO {value:.6g} ± {error:.2g} from {len(found.gaps)} draws on all data; it moved by {change:+.3g} "
        f"({relative:.2g} of itself) between the last windows",
    ]
    if not finite:
        messages.append("the ELBO is not finite: some draws have no density; start nearer to a mode, or train longer")
    elif off or still:
        places = ", ".join(f"{_WORDS[k]} {v:.2g}" for k, v in off.items())
        messages.append(
            "the ELBO has not converged"
            + (f": {places} from where it would settle (should be below {near:.2g})" if off else "")
            + "; run more steps, or more samples a step"
        )
    else:
        messages.append("the ELBO has converged")
    fallen = collapsed(model, posterior)
    messages += [
        f"{k} has collapsed to {v:.2g}: its posterior is below {COLLAPSED:g} of its start, so it prunes what it scales; "
        "a hyperprior that vanishes at zero (LogNormal, InverseGamma), or HMC, tells whether the data ask for that"
        for k, v in fallen.items()
    ]
    table = {
        "elbo": {"value": value, "change": change, "relative_change": relative},
        "distance": {k: v for k, (v, _) in far.items()},
    }
    return Diagnostics(messages=tuple(messages), table=table, ok=finite and not off and not still and not fallen)


_WORDS = {"mean": "the mean is (in deviations)", "scale": "the scales are", "shape": "the covariance is"}


def distances(found: Examined) -> dict[str, tuple[float, float]]:
    """Root mean square distances by quantity: as estimated, and as they are at the least (two errors below)."""
    sigma = found.spread["log_scale"].exp()
    size = found.deviations.shape[1]
    white = found.family.whitened(found.spread, sigma, found.slopes)
    along = found.slopes * found.deviations / 2  # the slope in log σ falls by 2 where log σ grows by 1
    grams = {"mean": white @ white.mT, "scale": along @ along.mT}
    shape = found.family.shape_gram(found.spread, sigma, found.slopes, found.z)
    if shape is not None:
        grams["shape"] = shape
    far = {k: _norm_of_mean(g / size) for k, g in grams.items()}
    by_curvature = _newton_distance(found, sigma)
    return far if by_curvature is None else {**far, "mean": by_curvature}


def _newton_distance(found: Examined, sigma: Tensor) -> tuple[float, float] | None:
    """How far the mean is, in deviations of the posterior rather than of q, which along a narrow valley are much longer.

    Slopes at the draws are a line in their deviations, exactly so for a normal posterior: its intercept is the slope at the
    mean and its steepness the posterior's precision. None where there are too few draws for that, or it bends upwards.
    """
    count, size = found.deviations.shape
    if DRAWS_PER_UNKNOWN * size > count or not bool(found.slopes.isfinite().all()):
        return None
    pull = found.family.pull(found.spread, sigma, found.z, found.deviations)
    slopes, deviations = (found.slopes - pull).double(), found.deviations.double() / sigma.double()
    line = torch.linalg.lstsq(torch.cat([torch.ones_like(deviations[:, :1]), deviations], 1), slopes).solution
    precision = -(line[1:] / sigma.double()[:, None] + (line[1:] / sigma.double()[:, None]).mT) / 2
    values, vectors = torch.linalg.eigh(precision)
    if not bool(values[0] > 0):
        return None
    rest = slopes - line[0] - deviations @ line[1:]
    steps = line[0] @ vectors / values.sqrt()
    scatter = ((rest @ vectors) ** 2).sum(0) / (count - size - 1) / values / count
    square, noise = float((steps**2).sum() / size), float(scatter.sum() / size)
    return max(0.0, square - noise) ** 0.5, max(0.0, square - 3 * noise) ** 0.5


def _norm_of_mean(gram: Tensor) -> tuple[float, float]:
    """‖E v‖ from inner products of independent draws of v: products of two different ones are unbiased for its square."""
    gram = gram.double()
    count = gram.shape[0]
    pairs = count * (count - 1)
    products = gram - torch.diag(gram.diagonal())
    square = float(products.sum() / pairs)
    noise = float((2 * (products**2).sum() / pairs / pairs).sqrt())
    if math.isnan(square):
        return square, square
    return max(0.0, square) ** 0.5, max(0.0, square - 2 * noise) ** 0.5


def _change(windows: Tensor) -> tuple[float, float]:
    """The median relative change of the ELBO between the last windows, and the last change."""
    if len(windows) < 2:
        return float("inf"), float("nan")
    changes = windows.diff()
    relative = (changes / windows[1:].abs().clamp(min=1e-12)).abs()[-LAST_WINDOWS:]
    return float(relative.median()), float(changes[-1])


def collapsed(model: Any, posterior: Gaussian) -> dict[str, float]:
    """Prior scales that even two deviations up are a thousandth of their start or less, by name."""
    names = [k for k in getattr(model, "hyperpriors", {}) if k.startswith("prior.") and "scale" in k]
    if not names:
        return {}
    deviation = _deviations(posterior, names)
    fallen = {}
    for k in names:
        start = {n: v.to(posterior.mean[k].device) for n, v in model.start.items()}
        here = model.constrain({**posterior.mean})[k]
        above = model.constrain({**posterior.mean, k: posterior.mean[k] + 2 * deviation[k]})[k]
        sunk = above < COLLAPSED * model.constrain(start)[k]
        if bool(sunk.any()):
            fallen[k] = float(here[sunk].min())
    return fallen


def _deviations(posterior: Gaussian, names: Sequence[str]) -> dict[str, Tensor]:
    """Marginal standard deviations of some unknowns."""
    found = {}
    for k in names:
        count = posterior.mean[k].numel()
        rows = torch.zeros(count, to_vector(posterior.free).numel()).to(to_vector(posterior.free))
        before = 0
        for n, w in posterior.free.items():
            if n == k:
                break
            before += w.numel()
        rows[torch.arange(count), before + torch.arange(count)] = 1.0
        found[k] = posterior.unscatter(rows).norm(dim=-1).reshape(posterior.mean[k].shape)
    return found
