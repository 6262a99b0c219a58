"""Damped Newton steps to the highest point, for networks small enough for a whole curvature matrix."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ...weights.algebra import Weights, from_vector, to_vector

MOST_TRIES, MOST_TRIES_NEAR = 500, 50  # Gauss-Newton steps may be small in the valleys of a network
NEAR = 1e-3  # posterior deviations from the top, where it matters little any more
CLOSE = 1e-6  # the step from there is the last one
ROUNDINGS = 16  # units in the last place of the log joint, below which its rises say nothing
LITTLE = 0.1  # of the promised rise: a step with less is taken back
FIRST_DAMPING, LEAST_DAMPING = 1e-3, 1e-15  # beside a curvature with ones on its diagonal
MOST_DAMPING = 1e4  # where more is asked for, the top is a kink: a ReLU's slope jumps there and never vanishes


def climb(here: Place) -> Place:
    """w ← w + (Λ + λ diag Λ)⁻¹ ∇ log p(w, D), with a damping λ at which the log joint rises as Λ promises.

    Marquardt's (1963) scaling by the diagonal of Λ makes the units of the weights irrelevant; λ follows Nielsen (1999).
    The first step is not damped, so on a quadratic it arrives.
    """
    damping, growth, near = 0.0, 2.0, 0
    for _ in range(MOST_TRIES):
        step = here.step(damping)
        promised = here.promised(step)
        near += promised <= 0.5 * NEAR**2
        if near > MOST_TRIES_NEAR or damping > MOST_DAMPING:
            break
        there = here.moved(step) if step is not None else here
        arrived = promised <= 0.5 * CLOSE**2
        if arrived or promised <= here.rounding:  # the log joint cannot tell any more, but its slope can
            less = there.steepness < here.steepness
            here = there if less else here
            if arrived or not less:
                break
            continue
        kept = (there.value - here.value) / promised
        if kept >= LITTLE:  # not where it is no number
            damping, growth = damping * max(1 / 3, 1 - (2 * kept - 1) ** 3), 2.0
            damping = damping if damping > LEAST_DAMPING else 0.0
            here = there
        else:
            damping, growth = damping * growth if damping else FIRST_DAMPING, 2 * growth
    return here


class Place(ABC):
    """A point with the log joint, its slope and its curvature there.

    Attributes:
        params: All unknowns.
        names: Those that may move; vectors are over these.
    """

    params: Weights
    names: Sequence[str]

    @cached_property
    @abstractmethod
    def whole(self) -> tuple[float, Tensor]:
        """The log joint and its slope."""

    @cached_property
    @abstractmethod
    def precision(self) -> Tensor:
        """Λ."""

    @abstractmethod
    def at(self, params: Weights) -> Place:
        """Another point of the same hill."""

    @property
    def value(self) -> float:
        """The log joint."""
        return self.whole[0]

    @property
    def rounding(self) -> float:
        """How much of the log joint is noise."""
        return ROUNDINGS * torch.finfo(next(iter(self.params.values())).dtype).eps * abs(self.value)

    @cached_property
    def scale(self) -> Tensor:
        """The size of the curvature in each direction, one where there is none."""
        diagonal = self.precision.diagonal().abs()
        return torch.where(diagonal > 0, diagonal, 1.0)

    @cached_property
    def steepness(self) -> float:
        """The slope in units of the curvature."""
        return float((self.whole[1] / self.scale.sqrt()).norm())

    def step(self, damping: float) -> Tensor | None:
        """The damped Newton step, None where the damped curvature still is not positive."""
        root = self.scale.sqrt()
        scaled = self.precision / (root.unsqueeze(0) * root.unsqueeze(1))
        scaled.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(scaled)
        if bool(failed):
            return None
        return torch.cholesky_solve((self.whole[1] / root).unsqueeze(1), factor).squeeze(1) / root

    def promised(self, step: Tensor | None) -> float:
        """How much the log joint would rise if it were quadratic; infinitely where it is not even bent downwards."""
        if step is None:
            return math.inf
        return float(step @ self.whole[1] - 0.5 * step @ self.precision @ step)

    def moved(self, step: Tensor) -> Place:
        """The point one step away."""
        own = {k: self.params[k] for k in self.names}
        moved = from_vector(to_vector(own).double() + step, own)
        params = {**self.params, **{k: v.to(self.params[k].dtype) for k, v in moved.items()}}
        return self.at(params)
