"""Step-size adaptation by dual averaging, and the windows in which a mass is estimated (Hoffman & Gelman, 2014; Stan)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DELAY, DECAY = 10.0, 0.75  # the paper's t₀ and κ
FIRST_WINDOW, FIRST_LENGTH, LAST_WINDOW = 75, 25, 50  # Stan's
SHORTEST_LAST = 10  # the search restarts ten times too high: in fewer steps it would not come down


@dataclass(frozen=True)
class Search:
    """How a step size is sought around a centre: x = centre − √t / γ · (average of target − acceptance).

    Attributes:
        shrinkage: γ, the pull to the centre.
        above: How far, as a log, the centre lies above where the search starts.
        again: The same when the search starts again with a new mass.
    """

    shrinkage: float
    above: float
    again: float


# The paper's. From above, since large steps fail fast; and a weak pull, since trajectories fail steeply.
TRAJECTORIES = Search(shrinkage=0.05, above=2.302585, again=2.302585)
# A tree of steps that are ten times too long ends at once, and the search answers with steps that are far too short, for
# trees of many leaves: with a mass there is a step size to begin with, and its short last window is no time for that.
TREES = Search(shrinkage=0.1, above=2.302585, again=0.6931472)
# A single step is accepted or not by chance, and its acceptance falls slowly with its size: the paper's γ would follow
# the noise, over factors of hundreds. A strong pull asks for an honest centre.
SINGLE_STEPS = Search(shrinkage=0.3, above=0.0, again=0.0)


def restart(log_step: Tensor, above: float) -> dict[str, Tensor]:
    """Begin to seek around a step size that lies so far, as a log, above this one."""
    zero = torch.zeros_like(log_step)
    return {
        "log_step": log_step.clone(),
        "log_mean_step": log_step.clone(),
        "centre": log_step + above,
        "error": zero,
        "count": zero.clone(),
    }


def tuned(
    tuning: dict[str, Tensor], acceptance: Tensor, target: float, active: Tensor, search: Search
) -> dict[str, Tensor]:
    """One update of the dual averages where `active`."""
    count = tuning["count"] + 1
    weight = 1 / (count + DELAY)
    error = (1 - weight) * tuning["error"] + weight * (target - acceptance)
    log_step = tuning["centre"] - count.sqrt() / search.shrinkage * error
    share = count**-DECAY
    new = {
        "log_step": log_step,
        "log_mean_step": share * log_step + (1 - share) * tuning["log_mean_step"],
        "centre": tuning["centre"],
        "error": error,
        "count": count,
    }
    return {k: torch.where(active, v, tuning[k]) for k, v in new.items()}


def windows(warmup: int) -> list[int]:
    """The steps after which the mass is renewed: windows that double in length, between two buffers."""
    if warmup < 20:
        return []
    first, last, length = FIRST_WINDOW, LAST_WINDOW, FIRST_LENGTH
    if first + length + last > warmup:
        first, last = int(0.15 * warmup), max(SHORTEST_LAST, int(0.1 * warmup))
        length = warmup - first - last
    ends, begin = [], first
    while begin < warmup - last:
        end = begin + length
        if end + 2 * length > warmup - last:
            end = warmup - last
        ends.append(end - 1)
        begin, length = end, 2 * length
    return ends
