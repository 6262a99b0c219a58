"""Families of normal approximations, as functions of vectors over all unknowns.

A draw is mean + σ ⊙ S z, with standard normals z: the scales σ, stored as logarithms, stretch whatever shape S gives. So
the slope in log σᵢ is (slope of the log joint)ᵢ · (deviation)ᵢ for every family, and S has no unit: one step size suits all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ...core.posteriors import Diagonal, Full, LowRank
from ...core.posteriors.gaussian import Gaussian
from ...weights.algebra import Weights, from_vector

FACTORS_START = (
    1e-2  # size of low-rank factors beside σ: zeros would be a saddle, where no factor ever leaves the others
)


class Family(ABC):
    """What an approximation's covariance may be. `spread` is {"log_scale": (P,)} and, where S has any, its parameters."""

    @abstractmethod
    def spread(self, log_scale: Tensor) -> Weights:
        """The start."""

    def noise(self, size: int) -> int:
        """How many standard normals one draw takes."""
        return size

    @abstractmethod
    def deviations(self, spread: Weights, sigma: Tensor, z: Tensor) -> Tensor:
        """Draws minus the mean: (K, P) from z (K, noise)."""

    @abstractmethod
    def pull(self, spread: Weights, sigma: Tensor, z: Tensor, deviations: Tensor) -> Tensor:
        """Σ⁻¹ (draw − mean), which is minus the slope of log q there: (K, P)."""

    @abstractmethod
    def half_log_det(self, spread: Weights) -> Tensor:
        """½ log |Σ|."""

    @abstractmethod
    def variances(self, spread: Weights, sigma: Tensor) -> Tensor:
        """The diagonal of Σ."""

    def shape(self, spread: Weights) -> Tensor:
        """S less the identity, or beside it; where S is not the identity."""
        return spread["shape"]

    def shape_slope(self, spread: Weights, stretched: Tensor, z: Tensor) -> Tensor | None:
        """The slope in S along the draws, from slopes times σ (K, P), averaged over K; None where S is the identity."""
        return None

    def parameters_slope(self, spread: Weights, slope: Tensor) -> Weights:
        """The slope in the parameters of S, from that in S."""
        return {"shape": slope}

    def shape_entropy_slope(self, spread: Weights) -> Tensor | None:
        """The slope of ½ log |Σ| in S; None where there is none."""
        return None

    def shape_gram(self, spread: Weights, sigma: Tensor, slopes: Tensor, z: Tensor) -> Tensor | None:
        """Inner products (K, K) of the draws' slopes in S, in units of the approximation itself."""
        return None

    @abstractmethod
    def whitened(self, spread: Weights, sigma: Tensor, slopes: Tensor) -> Tensor:
        """Lᵀ v for rows v, with Σ = L Lᵀ: the norm of the mean's slope in posterior deviations."""

    @abstractmethod
    def posterior(self, model: Any, mean: Weights, spread: Weights) -> Gaussian:
        """The distribution."""


class DiagonalFamily(Family):
    """Σ = diag(σ²)."""

    def spread(self, log_scale: Tensor) -> Weights:
        """The scales."""
        return {"log_scale": log_scale}

    def deviations(self, spread: Weights, sigma: Tensor, z: Tensor) -> Tensor:
        """σ z."""
        return sigma * z

    def pull(self, spread: Weights, sigma: Tensor, z: Tensor, deviations: Tensor) -> Tensor:
        """z / σ."""
        return z / sigma

    def half_log_det(self, spread: Weights) -> Tensor:
        """Σ log σ."""
        return spread["log_scale"].sum()

    def variances(self, spread: Weights, sigma: Tensor) -> Tensor:
        """σ²."""
        return sigma * sigma

    def whitened(self, spread: Weights, sigma: Tensor, slopes: Tensor) -> Tensor:
        """σ v."""
        return sigma * slopes

    def posterior(self, model: Any, mean: Weights, spread: Weights) -> Diagonal:
        """Independent normals."""
        return Diagonal(model, mean, from_vector(spread["log_scale"].exp(), mean))


class LowRankFamily(Family):
    """Σ = diag(σ) (I + C Cᵀ) diag(σ), with C of shape (P, rank): a diagonal d² = σ² plus B Bᵀ with B = diag(σ) C.

    The k-th column of C is a direction times exp(lₖ). The bound is as flat in a factor's length c as 1 / c², so that steps which
    suit the entries of a factor never make a long one: in its logarithm the bound is as steep whatever c is.
    """

    def __init__(self, rank: int):
        self.rank = rank

    def spread(self, log_scale: Tensor) -> Weights:
        """Scales, and factors that are small and all different."""
        place = torch.arange(log_scale.numel(), dtype=torch.float64, device=log_scale.device)
        turns = torch.arange(1, self.rank + 1, dtype=torch.float64, device=log_scale.device)
        waves = torch.cos(place[:, None] * turns * 0.7 + turns)
        directions = (FACTORS_START * waves).to(log_scale.dtype)
        return {"log_scale": log_scale, "shape": directions, "log_length": torch.zeros_like(directions[0])}

    def shape(self, spread: Weights) -> Tensor:
        """C."""
        return spread["shape"] * spread["log_length"].exp()

    def parameters_slope(self, spread: Weights, slope: Tensor) -> Weights:
        """By the chain rule through directions and lengths."""
        by_length = slope * spread["log_length"].exp()
        return {"shape": by_length, "log_length": (by_length * spread["shape"]).sum(0)}

    def noise(self, size: int) -> int:
        """One for each unknown and one for each factor."""
        return size + self.rank

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z[..., : -self.rank], z[..., -self.rank :]

    def deviations(self, spread: Weights, sigma: Tensor, z: Tensor) -> Tensor:
        """σ (z₁ + C z₂)."""
        own, shared = self._parts(z)
        return sigma * (own + shared @ self.shape(spread).mT)

    def _small(self, spread: Weights) -> Tensor:
        """The Cholesky factor of I + CᵀC."""
        c = self.shape(spread)
        small = c.mT @ c
        small.diagonal().add_(1.0)
        return torch.linalg.cholesky_ex(small).L  # not `cholesky`, which reads back whether it worked

    def pull(self, spread: Weights, sigma: Tensor, z: Tensor, deviations: Tensor) -> Tensor:
        """By the matrix inversion lemma: (v − C (I + CᵀC)⁻¹ Cᵀ v) / σ with v = deviation / σ."""
        c, v = self.shape(spread), deviations / sigma
        return (v - _solve(self._small(spread), (v @ c).mT).mT @ c.mT) / sigma

    def half_log_det(self, spread: Weights) -> Tensor:
        """Σ log σ + ½ log |I + CᵀC|."""
        return spread["log_scale"].sum() + self._small(spread).diagonal().log().sum()

    def variances(self, spread: Weights, sigma: Tensor) -> Tensor:
        """σ² (1 + Σ C²)."""
        return sigma * sigma * (1 + (self.shape(spread) ** 2).sum(-1))

    def shape_slope(self, spread: Weights, stretched: Tensor, z: Tensor) -> Tensor:
        """(σ h) z₂ᵀ."""
        return stretched.mT @ self._parts(z)[1] / z.shape[0]

    def shape_entropy_slope(self, spread: Weights) -> Tensor:
        """C (I + CᵀC)⁻¹."""
        return _solve(self._small(spread), self.shape(spread).mT).mT

    def shape_gram(self, spread: Weights, sigma: Tensor, slopes: Tensor, z: Tensor) -> Tensor:
        """Of (σ h) z₂ᵀ (I + CᵀC)^½, never formed: relative to the factors, where these are large."""
        stretched, shared = slopes * sigma, self._parts(z)[1] @ self._small(spread)
        return (stretched @ stretched.mT) * (shared @ shared.mT)

    def whitened(self, spread: Weights, sigma: Tensor, slopes: Tensor) -> Tensor:
        """σ v and Bᵀ v."""
        stretched = sigma * slopes
        return torch.cat([stretched, stretched @ self.shape(spread)], -1)

    def posterior(self, model: Any, mean: Weights, spread: Weights) -> LowRank:
        """Diagonal and factors."""
        sigma = spread["log_scale"].exp()
        factors = from_vector((sigma[:, None] * self.shape(spread)).mT, mean)
        return LowRank(model, mean, from_vector(sigma * sigma, mean), factors)


class FullFamily(Family):
    """Σ = L Lᵀ with L = diag(σ) (I + A) and A strictly lower triangular."""

    def spread(self, log_scale: Tensor) -> Weights:
        """Scales and no correlation."""
        return {"log_scale": log_scale, "shape": torch.diag(torch.zeros_like(log_scale))}

    def deviations(self, spread: Weights, sigma: Tensor, z: Tensor) -> Tensor:
        """σ (z + A z)."""
        return sigma * (z + z @ spread["shape"].mT)

    def pull(self, spread: Weights, sigma: Tensor, z: Tensor, deviations: Tensor) -> Tensor:
        """(I + A)⁻ᵀ z / σ."""
        upper = spread["shape"].mT  # its diagonal is taken for ones
        return torch.linalg.solve_triangular(upper, z.mT, upper=True, unitriangular=True).mT / sigma

    def half_log_det(self, spread: Weights) -> Tensor:
        """Σ log σ: I + A has determinant one."""
        return spread["log_scale"].sum()

    def variances(self, spread: Weights, sigma: Tensor) -> Tensor:
        """σ² (1 + Σ A²)."""
        return sigma * sigma * (1 + (spread["shape"] ** 2).sum(-1))

    def shape_slope(self, spread: Weights, stretched: Tensor, z: Tensor) -> Tensor:
        """The lower triangle of (σ h) zᵀ."""
        return (stretched.mT @ z / z.shape[0]).tril(-1)

    def shape_gram(self, spread: Weights, sigma: Tensor, slopes: Tensor, z: Tensor) -> Tensor:
        """Of (Lᵀ h) zᵀ, never formed: the slope in Σ, in its own units."""
        own = self.whitened(spread, sigma, slopes)
        return (own @ own.mT) * (z @ z.mT)

    def whitened(self, spread: Weights, sigma: Tensor, slopes: Tensor) -> Tensor:
        """Lᵀ v."""
        stretched = sigma * slopes
        return stretched + stretched @ spread["shape"]

    def posterior(self, model: Any, mean: Weights, spread: Weights) -> Full:
        """The dense covariance."""
        factor = spread["shape"].double().clone()  # rounded to float32, narrow posteriors' covariances are not definite
        factor.diagonal().add_(1.0)
        factor = spread["log_scale"].double().exp()[:, None] * factor
        return Full(model, mean, factor @ factor.mT)


def _solve(chol: Tensor, right: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(chol, right, upper=False)
    return torch.linalg.solve_triangular(chol.mT, half, upper=True)


def make_family(name: str, rank: int) -> Family:
    """A family by name."""
    if name == "low-rank":
        return LowRankFamily(rank)
    return FullFamily() if name == "full" else DiagonalFamily()
