"""Gaussian posteriors: independent weights, a low-rank covariance plus a diagonal, a full covariance (and `kronecker`).

A draw is one vector over all unknowns, so the covariance between layers is drawn as stated.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys
from ..target import Target
from .posterior import Posterior

LOG_2PI = math.log(2 * math.pi)
TOGETHER = 16  # draws of a dense covariance that are one product


class Gaussian(Posterior):
    """A normal distribution of the unconstrained unknowns, or of some of them: the rest are points.

    Vectors are over those that vary, in the order of the model's unknowns.
    """

    _mean: Weights
    free: Weights  # the means of the unknowns that vary

    def __init__(self, model: Target, mean: Weights, free: Iterable[str] | None = None):
        if mean.keys() != model.start.keys():
            raise ValueError(f"mean must have the model's unknowns {list(model.start)}, got {list(mean)}")
        varies = set(mean) if free is None else set(free)
        if not varies or not varies <= mean.keys():
            raise ValueError(f"the unknowns that vary must be some of {list(mean)}, got {sorted(varies)}")
        self.model = model
        self._mean = {k: mean[k] for k in model.start}
        self.free = {k: w for k, w in self._mean.items() if k in varies}

    @property
    def mean(self) -> Weights:
        """The mean of the unconstrained unknowns."""
        return self._mean

    @abstractmethod
    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """One draw of (params − mean), a vector."""

    @abstractmethod
    def unscatter(self, vector: Tensor) -> Tensor:
        """Lᵀ v, where a scatter is L z: ‖Lᵀ v‖² is the variance of v · params. Leading axes are kept."""

    def deviations(self, indices: Sequence[int], seed: int) -> Tensor:
        """Draws number `indices` minus the mean, (n, P)."""
        dtype = to_vector(self.free).dtype
        return torch.vmap(lambda key: self.scatter(Keys(key, key[0] * 0), dtype))(self._keys(indices, seed))

    def _noise(self, size: int, indices: Sequence[int], seed: int) -> Tensor:
        """Standard normals of draws number `indices`, (n, size), for products with all of them at once."""
        like = to_vector(self.free)
        draw = torch.vmap(lambda key: Keys(key, key[0] * 0).normal((size,), like.dtype, like.device))
        return draw(self._keys(indices, seed))

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """Draws number `indices`."""
        drawn = from_vector(self.deviations(indices, seed).add_(to_vector(self.free)), self.free)
        return {k: drawn[k] if k in drawn else w.expand(len(indices), *w.shape) for k, w in self._mean.items()}

    def _deviation(self, params: Mapping[str, Tensor]) -> Tensor:
        name, first = next(iter(self.free.items()))
        return to_vector({k: params[k] for k in self.free}, params[name].dim() - first.dim()) - to_vector(self.free)


class Diagonal(Gaussian):
    """Independent normals with standard deviations `scale`."""

    def __init__(self, model: Target, mean: Weights, scale: Weights):
        super().__init__(model, mean, scale)
        self.scale = {k: scale[k] for k in self.free}
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

    def unscatter(self, vector: Tensor) -> Tensor:
        """σ v."""
        return self._sigma * vector

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, diag(scale²))."""
        z = self._deviation(params) / self._sigma
        return -0.5 * (z * z + LOG_2PI).sum(-1) - self._sigma.log().sum()


class LowRank(Gaussian):
    """Covariance diag(variance) + Σₖ fₖ fₖᵀ, with factors f of shape (K, ...)."""

    def __init__(self, model: Target, mean: Weights, variance: Weights, factors: Weights):
        super().__init__(model, mean, variance)
        self.variance = {k: variance[k] for k in self.free}
        self.factors = {k: factors[k] for k in self.free}
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

    def unscatter(self, vector: Tensor) -> Tensor:
        """σ v and Fᵀ v."""
        parts = from_vector(vector, self.free)
        along = vector.new_zeros(*vector.shape[:-1], self.rank)
        for k, f in self.factors.items():  # tensor by tensor, as in a scatter: no (K, P) matrix
            along = along + parts[k].reshape(*vector.shape[:-1], -1) @ f.reshape(self.rank, -1).T
        return torch.cat([self._sigma * vector, along], -1)

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
    """A dense covariance (P, P), rows in the order of `torch.nn.utils.parameters_to_vector` over the model's unknowns.

    Args:
        model: Whose unknowns they are.
        mean: Of all unknowns.
        covariance: Of those that vary.
        names: Those that vary, in any order; None means all.
    """

    def __init__(self, model: Target, mean: Weights, covariance: Tensor, names: Iterable[str] | None = None):
        super().__init__(model, mean, names)
        size = sum(w.numel() for w in self.free.values())
        if covariance.shape != (size, size):
            raise ValueError(f"covariance must be ({size}, {size}) for {size} unknowns, got {tuple(covariance.shape)}")
        # In float64: a covariance with a condition past 10⁷ is a common one, and its factor's is the square root of that.
        chol, failed = torch.linalg.cholesky_ex(covariance.double())
        if bool(failed):
            smallest = torch.linalg.eigvalsh(covariance.double())[0].item()
            raise ValueError(
                f"covariance must be positive definite, its smallest eigenvalue is {smallest:.3g}; add damping"
            )
        self.covariance, self._chol = covariance, chol.to(next(iter(self.free.values())).dtype)

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean and covariance, and which unknowns vary where not all do."""
        if len(self.free) == len(self._mean):
            return {"mean": self._mean, "covariance": self.covariance}
        return {"mean": self._mean, "covariance": {json.dumps(list(self.free), ensure_ascii=False): self.covariance}}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        covariance, names = tensors["covariance"], None
        if not isinstance(covariance, Tensor):
            ((key, covariance),) = covariance.items()
            names = json.loads(key)
        return cls(model, tensors["mean"], covariance, names)

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """L z with L Lᵀ the covariance."""
        return self._chol @ rng.normal(self._chol.shape[:1], dtype, self._chol.device)

    def deviations(self, indices: Sequence[int], seed: int) -> Tensor:
        """As for any Gaussian, by products of one shape: how many draws are asked for does not change the bits of the first."""
        noise = self._noise(len(self._chol), indices, seed)
        filled = torch.cat([noise, noise.new_zeros(-len(noise) % TOGETHER, len(self._chol))])
        return torch.cat([rows @ self._chol.T for rows in filled.split(TOGETHER)])[: len(noise)]

    def unscatter(self, vector: Tensor) -> Tensor:
        """Lᵀ v."""
        return vector @ self._chol

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, covariance)."""
        z = torch.linalg.solve_triangular(self._chol, self._deviation(params).unsqueeze(-1), upper=False).squeeze(-1)
        return -0.5 * (z * z + LOG_2PI).sum(-1) - self._chol.diagonal().log().sum()
