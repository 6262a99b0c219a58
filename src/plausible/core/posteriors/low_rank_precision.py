"""A Gaussian whose precision is a diagonal plus a few directions in which the data speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ...weights.algebra import Weights, to_vector
from ...weights.rng import Keys
from ..target import Target
from .gaussian import LOG_2PI, Gaussian


class LowRankPrecision(Gaussian):
    """Precision D^½ (I + Σₖ λₖ uₖ uₖᵀ) D^½, with D diagonal and the u orthonormal.

    So the covariance has the prior's D⁻¹ in all but K directions, and less in these: no sum of a diagonal and factors.

    Args:
        model: Whose unknowns they are.
        mean: Of all unknowns.
        precision: D, of the unknowns that vary.
        directions: u, each (K, ...) of an unknown's shape.
        curvature: λ, (K,).
    """

    def __init__(self, model: Target, mean: Weights, precision: Weights, directions: Weights, curvature: Tensor):
        super().__init__(model, mean, precision)
        self.precision = {k: precision[k] for k in self.free}
        self.directions = {k: directions[k] for k in self.free}
        self.curvature = curvature
        self._sigma = to_vector(self.precision).rsqrt()
        self._axes = to_vector(self.directions, 1)  # (K, P)

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean, diagonal, directions and their curvature."""
        return {
            "mean": self._mean, "precision": self.precision, "directions": self.directions,
            "curvature": self.curvature,
        }  # fmt: skip

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["mean"], tensors["precision"], tensors["directions"], tensors["curvature"])

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """D^-½ (I + Σ λ u uᵀ)^-½ z."""
        return self._sigma * self._along(rng.normal(self._sigma.shape, dtype, self._sigma.device), -0.5)

    def unscatter(self, vector: Tensor) -> Tensor:
        """(I + Σ λ u uᵀ)^-½ D^-½ v."""
        return self._along(self._sigma * vector, -0.5)

    def _along(self, vector: Tensor, power: float) -> Tensor:
        """(I + Σ λ u uᵀ)^power v."""
        change = (1 + self.curvature) ** power - 1
        return vector + ((vector @ self._axes.T) * change) @ self._axes

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, precision⁻¹)."""
        z = self._along(self._deviation(params) / self._sigma, 0.5)
        log_det = torch.log1p(self.curvature).sum() - 2 * self._sigma.log().sum()
        return -0.5 * (z * z + LOG_2PI).sum(-1) + 0.5 * log_det
