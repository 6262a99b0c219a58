"""What methods share whose curvature is the squared gradients of single examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...core.method import Method
from ...weights.algebra import Weights
from ...weights.rng import Keys
from .example_moments import mean_moments
from .gaussian_prior import GaussianPrior
from .hindsight import Hindsight


class SquaredGradients(Hindsight, Method):
    """A mean, a momentum and a curvature for every weight; squares that no compiler can read."""

    narrower: ClassVar[str] = "damping=0.3 bounds their width"
    num_parts: int = 1  # of a batch, each with draws of its own

    @property
    def compiles(self) -> bool:
        """Gradients of single examples are recorded, which a compiler cannot read."""
        return False

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """Mean, momentum and curvature."""
        zeros = lambda: {k: torch.zeros_like(w) for k, w in params.items()}  # noqa: E731
        return {"params": params, "momentum": zeros(), "curvature": zeros()}

    def probed_steps(self, num_steps: int) -> Sequence[int]:
        """Before the first: which rule squares a layer's gradients is found by reading tensors back, as no step may."""
        return (0,)

    def probe(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """Let the rules be found."""
        params = state["params"]
        mean_moments(model, [params] * self.num_parts, batch, GaussianPrior.of(model, params), self.num_parts)
        return state
