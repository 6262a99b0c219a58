"""One step of Hamiltonian dynamics in the coordinates of a mass."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ...weights.algebra import from_vector, to_vector
from .mass import Identity

DIVERGENT = 1000.0  # an energy error that no accurate trajectory makes


class Phase(NamedTuple):
    """A particle: where it is, how fast, and what pulls at it."""

    point: Tensor
    momentum: Tensor
    slope: Tensor
    log_joint: Tensor

    @property
    def energy(self) -> Tensor:
        """log p(w, D) − ½ s · s, the negative Hamiltonian."""
        return self.log_joint - 0.5 * (self.momentum * self.momentum).sum()


def leapfrog(
    model: Any, rule: Identity, mass: dict[str, Tensor], at: tuple[Tensor, ...], epsilon: Tensor, batch: Any
) -> Phase:
    """s ← s + ε/2 Lᵀ∇, w ← w + ε L s, s ← s + ε/2 Lᵀ∇ from (point, momentum, slope)."""
    point, momentum, slope = at
    momentum = momentum + 0.5 * epsilon * slope
    point = point + rule.outward(mass, epsilon * momentum)
    log_joint, gradient = model.slope(from_vector(point, model.start), batch)
    slope = rule.inward(mass, to_vector(gradient))
    return Phase(point, momentum + 0.5 * epsilon * slope, slope, log_joint)


def energy_change(after: Tensor, before: Tensor) -> Tensor:
    """What a proposal gains in log density, momenta included; where anything is not finite it is worth nothing."""
    change = after - before
    return change.masked_fill(~change.isfinite(), -float("inf"))
