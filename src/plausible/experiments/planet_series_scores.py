"""How good a distribution of instability times is, where long times are known only to be long."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metrics import auroc_ood
from .planet_series_data import LONGEST, SHORTEST


def time_scores(samples: Tensor, log10_time: Tensor, estimate: Tensor | None = None) -> dict[str, float]:
    """Scores of S samples of each system's log10 time, (S, N), against the times (N,), `LONGEST` where a system outlived it.

    The error of a point estimate (N,) counts where the time is known; where none is given, it is the mean of samples, and it
    is cut off at both ends of what is recorded. To count only there favours low estimates, so there is a second one: the mean
    of samples before `LONGEST`. Every system counts for the rest.

    Returns:
        rmse and bias of the first estimate; met_rmse, of the second; auc, of telling who lives longest by the share of
        samples that do; cover68 and cover95, the shares of times inside the central intervals.
    """
    samples, truth = samples.double(), log10_time.double()
    lives = truth >= LONGEST
    cut = samples.clamp(SHORTEST, LONGEST)
    point = cut.mean(0) if estimate is None else estimate.double().clamp(SHORTEST, LONGEST)
    error = (point - truth)[~lives]
    early = (samples < LONGEST).double()
    given_met = (cut * early).sum(0) / early.sum(0).clamp(min=1)
    given_met = torch.where(early.sum(0) > 0, given_met, LONGEST)
    stable = (samples >= LONGEST).double().mean(0)
    below = (samples < truth).double().mean(0)
    return {
        "rmse": float(error.square().mean().sqrt()),
        "met_rmse": float((given_met - truth)[~lives].square().mean().sqrt()),
        "bias": float(error.mean()),
        "auc": float(auroc_ood(stable[~lives], stable[lives])) if 0 < int(lives.sum()) < len(lives) else 0.5,
        "cover68": coverage(below, lives, 0.68),
        "cover95": coverage(below, lives, 0.95),
    }


def coverage(below: Tensor, censored: Tensor, level: float) -> float:
    """The share of truths inside the central interval of probability `level`.

    Of a truth known only to lie beyond a limit, the part of the distribution beyond it that is inside the interval counts:
    a calibrated forecast is right in `level` of all cases then, however many are censored.

    Args:
        below: (N,), the probability that was given to lying below the truth, or below the limit.
        censored: (N,), whether it is a limit.
        level: of the interval.
    """
    low, high = (1 - level) / 2, (1 + level) / 2
    inside = ((below >= low) & (below <= high)).double()
    beyond = (high - below.clamp(low, high)) / (1 - below).clamp(min=1e-12)
    return float(torch.where(censored, beyond, inside).mean())


def earliest(trio_samples: Tensor, met: Tensor, delays: Tensor) -> Tensor:
    """(S, N): log10 of the time at which the first trio of each system meets, in orbits of the system's innermost planet.

    Args:
        trio_samples: (S, N * trios), log10 of times in each trio's own orbits.
        met: (N,), orbits until the system met in the short integration, which needs no prediction; infinite for others.
        delays: (N, trios), log10 of a trio's orbit in orbits of the system's innermost planet.
    """
    first = (trio_samples.double().unflatten(1, delays.shape) + delays).amin(2)
    return torch.where(met.isfinite(), met.log10(), first)
