"""The step-size sequence of Kucukelbir et al. (2017), and the search for its scale η.

    ρₖ = η k^(−½+ε) / (τ + √sₖ),   sₖ = α gₖ² + (1 − α) sₖ₋₁,   s₁ = g₁²

with g the slope of the whole-data ELBO. Each of five η runs from the start for a few steps; the one whose ELBO is highest in the
second half of its trial begins anew from the start.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...weights.algebra import Weights

CANDIDATES = (0.01, 0.1, 1.0, 10.0, 100.0)
WITHOUT_SEARCH = 0.1  # where a run is too short for one
EPSILON, TAU, ALPHA = 1e-16, 1.0, 0.1  # the paper's
LONGEST_TRIAL, TRIAL_SHARE = 50, 25  # steps, and the 25th part of a run: a fifth of it for all five
SHORTEST_RUN = 20


def trial_length(num_steps: int) -> int:
    """Steps of one trial; 0 where a run is too short for a search."""
    return 0 if num_steps < SHORTEST_RUN else min(LONGEST_TRIAL, max(2, num_steps // TRIAL_SHARE))


def start(moving: Weights, eta: float | Tensor | None, trial: int) -> dict[str, Any]:
    """What the sequence and its search remember; the search's part only where there is one (`eta` None, a trial's length)."""
    like = next(iter(moving.values()))
    first = CANDIDATES[0] if trial else WITHOUT_SEARCH
    scalar = lambda value: torch.zeros((), dtype=torch.float64, device=like.device) + value  # noqa: E731
    state = {
        "squares": {k: torch.zeros_like(v) for k, v in moving.items()},
        "eta": scalar(first if eta is None else eta),
    }
    if eta is None and trial:
        state["search"] = {
            "origin": {k: v.clone() for k, v in moving.items()},
            "score": scalar(0.0),
            "best_score": scalar(-float("inf")),
            "best_eta": scalar(first),
        }
    return state


def climb_(moving: Weights, memory: dict[str, Any], slopes: Weights, elbo: Tensor, step: Tensor, trial: int) -> Tensor:
    """One step uphill, in place; returns whether this is a trial, whose failures are no failures of the run."""
    searching = "search" in memory
    if searching:
        inside = step < len(CANDIDATES) * trial
        place = torch.where(inside, step % trial, step - len(CANDIDATES) * trial)
        found = elbo.double().masked_fill(~torch.isfinite(elbo), -float("inf"))
        memory["search"]["score"] += found.masked_fill(~inside | (place < trial // 2), 0.0)
    else:
        inside, place = step < 0, step
    count = (place + 1).double()
    rate = memory["eta"] * count ** (-0.5 + EPSILON)
    share = ALPHA + (1 - ALPHA) * (place == 0).double()
    for k, v in moving.items():
        g = slopes[k].masked_fill(inside & ~torch.isfinite(slopes[k]), 0.0) if searching else slopes[k]
        own = share.to(v.dtype)
        squares = memory["squares"][k]
        squares.copy_(own * g * g + (1 - own) * squares)
        v += rate.to(v.dtype) * g / (TAU + squares.sqrt())
    return inside


def judge(moving: Weights, memory: dict[str, Any], trial_number: int) -> tuple[Weights, dict[str, Any]]:
    """At the end of a trial: remember it if it is the best, and go back to the start with the next η, or the best at last."""
    search = memory["search"]
    better = search["score"] > search["best_score"]
    best_eta = torch.where(better, memory["eta"], search["best_eta"])
    last = trial_number == len(CANDIDATES) - 1
    eta = best_eta.clone() if last else torch.full_like(best_eta, CANDIDATES[trial_number + 1])
    renewed = {
        **search,
        "score": torch.zeros_like(search["score"]),
        "best_score": torch.where(better, search["score"], search["best_score"]),
        "best_eta": best_eta,
    }
    squares = {k: torch.zeros_like(v) for k, v in memory["squares"].items()}
    return {k: search["origin"][k].clone() for k in moving}, {"squares": squares, "eta": eta, "search": renewed}
