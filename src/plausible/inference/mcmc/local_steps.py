"""Shorter steps where the posterior is stiffer than where the step size was found, by Gibbs self-tuning.

A step size that is right nearly everywhere is never accepted where the posterior bends much more: a leapfrog is unstable
beyond twice the inverse frequency, and a chain that strays there stands still. In a network this happens whenever a hidden
unit that was idle while the mass was learned comes into use, and its weights are suddenly pinned down.

So the step is halved h times, and h is a variable with a law of its own given the point (Bou-Rabee, Carpenter & Marsden,
2024): p(h | w) ∝ exp(−λ (h − wanted(w))²). A transition draws h at its start and holds it; its trajectory samples from
p(w | D) p(h | w), so that both together keep their joint law and w keeps the posterior, exactly.

`wanted` compares the squared pull |ε Lᵀ∇ log p|² at the point with what the search for ε accepted. Where it is as usual, λ
leaves a thousandth of the transitions halved, so that the others of a vectorised run rarely wait for one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST_HALVINGS = 3  # what needs steps that are still shorter is no part of what was adapted to
TIGHTNESS = math.log(1000.0)  # λ
USUAL = 1.0  # deviations of the log pull that are nothing unusual
BY_CHANCE = 2.0  # and √(2 / unknowns), by which it would vary under any normal: of few unknowns it tells little
FEWEST = 4.0  # accepted transitions, below which nothing is known of what is usual


def log_pull(slope: Tensor, step_size: Tensor) -> Tensor:
    """log |ε Lᵀ∇ log p|², finite also where nothing pulls or a search has made its steps vanish."""
    return (slope * slope).sum().clamp(1e-30, 1e30).log() + 2 * step_size.clamp(min=1e-30).log()


def nothing_seen(like: Tensor) -> Tensor:
    """Before the first transition: sums of weights, of log pulls and of their squares."""
    return torch.zeros(*like.shape, 3, dtype=torch.float64, device=like.device)


def seen(sums: Tensor, pull: Tensor, acceptance: Tensor, active: Tensor) -> Tensor:
    """The sums with one more pull where `active`, weighted by how much of the transition was accepted."""
    share = (acceptance * active).double()
    pull = pull.masked_fill(share == 0, 0.0)  # what was not accepted may be no number
    return sums + share * torch.stack([torch.ones_like(pull), pull, pull * pull])


def usual_pull(sums: Tensor, slope: Tensor) -> Tensor:
    """The log pull up to which the step size stays as it is, in the dimension of a slope."""
    weight, mean = sums[..., 0], sums[..., 1] / sums[..., 0].clamp(min=1.0)
    deviation = (sums[..., 2] / weight.clamp(min=1.0) - mean * mean).clamp(min=0.0).sqrt()
    bound = mean + USUAL * deviation + BY_CHANCE * math.sqrt(2 / slope.shape[-1])
    return bound.masked_fill(weight < FEWEST, math.inf).to(slope.dtype)


def wanted_halvings(pull: Tensor, usual: Tensor) -> Tensor:
    """How often the step should be halved: half the step is a quarter of the squared pull."""
    return ((pull - usual) / math.log(4.0)).clamp(0.0, MOST_HALVINGS)


def drawn(wanted: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """An h by one uniform number, and log p(h | w)."""
    every = torch.arange(MOST_HALVINGS + 1, dtype=wanted.dtype, device=wanted.device)
    below = (-TIGHTNESS * (every - wanted) ** 2).exp().cumsum(0)
    halvings = (uniform * below[-1] > below[:-1]).sum().to(wanted.dtype)
    return halvings, _log_share(halvings, wanted, below[-1])


def log_chance(halvings: Tensor, wanted: Tensor) -> Tensor:
    """log p(h | w) of an h that was drawn elsewhere."""
    # The nearest h is half a halving away at most: the sum is never small. One by one, a compiler fuses it with all else.
    total = torch.zeros_like(wanted)
    for other in range(MOST_HALVINGS + 1):
        total = total + (-TIGHTNESS * (wanted - other) ** 2).exp()
    return _log_share(halvings, wanted, total)


def _log_share(halvings: Tensor, wanted: Tensor, total: Tensor) -> Tensor:
    return -TIGHTNESS * (halvings - wanted) ** 2 - total.log()
