"""A look back when a run is over, by methods that judge their own outcome."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ..weights.algebra import Weights
from .posteriors import Posterior


@runtime_checkable
class Reviewing(Protocol):
    """A method that has more to say of its answer once it can predict."""

    def reviewed(self, answer: Posterior, start: Weights, batch: Any, steps: int) -> None:
        """Add to the answer's diagnostics.

        Args:
            answer: Of one mode.
            start: The weights that the mode started from.
            batch: One that an epoch began with, without augmentation; None where there are no data.
            steps: How many were made.
        """
