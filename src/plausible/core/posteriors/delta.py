"""All belief at one point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from ...weights.algebra import Weights
from ..target import Target
from .posterior import Posterior, Stratum


class Delta(Posterior):
    """A point estimate: one set of weights."""

    finite = True

    def __init__(self, model: Target, params: Weights):
        self.model, self.params = model, params

    @property
    def tensors(self) -> dict[str, Any]:
        """The point."""
        return {"params": self.params}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["params"])

    @property
    def mean(self) -> Weights:
        """The point itself."""
        return self.params

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """The point, as often as asked."""
        return {k: w.expand(len(indices), *w.shape) for k, w in self.params.items()}

    def strata(self, num_samples: int, seed: int) -> list[Stratum]:
        """The point, once."""
        return [Stratum(self, range(1), 1.0, seed, exact=True)]
