"""Gaussian posteriors: independent weights, a low-rank covariance plus a diagonal, a full covariance.

A draw is one vector over all unknowns, so the covariance between layers is drawn as stated.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys
from ..target import Target
from .posterior import Posterior

LOG_2PI = math.log(2 * math.pi)


class Gaussian(Posterior):
    """A normal distribution of the unconstrained unknowns. Vectors are in the order of the model's unknowns."""

    _mean: Weights

    def __init__(self, model: Target, mean: Weights):
        if mean.keys() != model.start.keys():
            raise ValueError(f"mean must have the model's unknowns {list(model.start)}, got {list(mean)}")
        self.model = model
        self._mean = {k: mean[k] for k in model.start}

    @property
    def mean(self) -> Weights:
        """The mean of the unconstrained unknowns."""
        return self._mean

    @abstractmethod
    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """One draw of (params − mean), a vector."""

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """Draws number `indices`."""
        centre = to_vector(self._mean)
        keys = self._keys(indices, seed)

        def one(key: Tensor) -> Tensor:
            return centre + self.scatter(Keys(key, key[0] * 0), centre.dtype)

        return from_vector(torch.vmap(one)(keys), self._mean)

    def _deviation(self, params: Mapping[str, Tensor]) -> Tensor:
        leading = next(iter(params.values())).dim() - next(iter(self._mean.values())).dim()
        return to_vector({k: params[k] for k in self._mean}, leading) - to_vector(self._mean)


class Diagonal(Gaussian):
    """Independent normals with standard deviations `scale`."""

    def __init__(self, model: Target, mean: Weights, scale: Weights):
        super().__init__(model, mean)
        self.scale = {k: scale[k] for k in self._mean}
        self._sigma = to_vector(self.scale)

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean and standard deviation."""
        return {"mean": self._mean, "scale": self.scale}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["mean"], tensors["scale"])

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """σ z."""
        return self._sigma * rng.normal(self._sigma.shape, dtype, self._sigma.device)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, diag(scale²))."""
        z = self._deviation(params) / self._sigma
        return -0.5 * (z * z + LOG_2PI).sum(-1) - self._sigma.log().sum()


class LowRank(Gaussian):
    """Covariance diag(variance) + Σₖ fₖ fₖᵀ, with factors f of shape (K, ...)."""

    def __init__(self, model: Target, mean: Weights, variance: Weights, factors: Weights):
        super().__init__(model, mean)
        self.variance = {k: variance[k] for k in self._mean}
        self.factors = {k: factors[k] for k in self._mean}
        # The factors stay in their own tensors: a (K, P) matrix beside them would double the memory.
        self._sigma = to_vector(self.variance).clamp(min=0).sqrt()

    @property
    def rank(self) -> int:
        """Number of factors."""
        return next(iter(self.factors.values())).shape[0]

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean, diagonal and factors."""
        return {"mean": self._mean, "variance": self.variance, "factors": self.factors}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["mean"], tensors["variance"], tensors["factors"])

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """σ z₁ + F z₂."""
        noise = self._sigma * rng.normal(self._sigma.shape, dtype, self._sigma.device)
        # One z for all tensors: the covariance between layers is the point.
        z = rng.normal((self.rank,), dtype, self._sigma.device)
        along = {k: torch.tensordot(z.to(f.dtype), f, dims=1) for k, f in self.factors.items()}
        return noise + to_vector(along)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, diag + F Fᵀ), by the matrix inversion and determinant lemmas."""
        factors = to_vector(self.factors, 1)
        if bool((self._sigma == 0).any()):
            raise ValueError("the diagonal of this low-rank covariance has zeros, so it has no density; add a variance")
        scaled = factors / self._sigma
        small = torch.eye(self.rank, dtype=scaled.dtype, device=scaled.device) + scaled @ scaled.mT
        chol = torch.linalg.cholesky(small)
        z = self._deviation(params) / self._sigma
        inner = torch.linalg.solve_triangular(chol, (z @ scaled.mT).unsqueeze(-1), upper=False).squeeze(-1)
        quadratic = (z * z).sum(-1) - (inner * inner).sum(-1)
        log_det = 2 * self._sigma.log().sum() + 2 * chol.diagonal().log().sum()
        return -0.5 * (quadratic + log_det + z.shape[-1] * LOG_2PI)


class Full(Gaussian):
    """A dense covariance (P, P), rows in the order of `torch.nn.utils.parameters_to_vector` over the model's unknowns."""

    def __init__(self, model: Target, mean: Weights, covariance: Tensor):
        super().__init__(model, mean)
        size = sum(w.numel() for w in self._mean.values())
        if covariance.shape != (size, size):
            raise ValueError(f"covariance must be ({size}, {size}) for {size} unknowns, got {tuple(covariance.shape)}")
        chol, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed):
            smallest = torch.linalg.eigvalsh(covariance)[0].item()
            raise ValueError(
                f"covariance must be positive definite, its smallest eigenvalue is {smallest:.3g}; add damping"
            )
        self.covariance, self._chol = covariance, chol

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean and covariance."""
        return {"mean": self._mean, "covariance": self.covariance}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["mean"], tensors["covariance"])

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """L z with L Lᵀ the covariance."""
        return self._chol @ rng.normal(self._chol.shape[:1], dtype, self._chol.device)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, covariance)."""
        z = torch.linalg.solve_triangular(self._chol, self._deviation(params).unsqueeze(-1), upper=False).squeeze(-1)
        return -0.5 * (z * z + LOG_2PI).sum(-1) - self._chol.diagonal().log().sum()
