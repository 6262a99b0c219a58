"""Shapes that an output Hessian can have: diagonal, softmax, dense.

One Hessian Hᵢ for each example i, positive semidefinite, over the K outputs of that example. Every shape knows two
products, H v and S v with S Sᵀ = H; columns and dense matrices are those products with unit vectors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


class OutputHessian(ABC):
    """The Hessians of −log p(yᵢ | outputsᵢ) in the outputs, or their expectations, for all examples of a batch.

    Vectors are shaped like the outputs, (N, ...), and may have further axes in front.

    Attributes:
        shape: That of the outputs.
        clipped: 0-d; how far from positive semidefinite the Hessians were: minus their smallest eigenvalue, relative to
            the largest. Zero where there was nothing to clip but rounding, infinite where nothing was positive.
    """

    clipped: Tensor

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """Some tensor with the dtype and device of the outputs."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size: ...

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """H v."""

    @abstractmethod
    def root_product(self, v: Tensor) -> Tensor:
        """S v, where S Sᵀ = H and S has as many columns as an example has outputs."""

    @property
    def num_columns(self) -> int:
        """How many columns S has: K."""
        return math.prod(self.shape[1:])

    def root(self) -> Tensor:
        """All columns of S at once, (K, N, ...)."""
        return self.root_product(self._units(0, self.num_columns))

    def roots(self, columns: int) -> Iterator[Tensor]:
        """The columns of S in blocks (r, N, ...), r ≤ `columns`, each made when it is asked for."""
        if columns < 1:
            raise ValueError(f"columns must be at least 1, got {columns}")
        for start in range(0, self.num_columns, columns):
            yield self.root_product(self._units(start, min(start + columns, self.num_columns)))

    def dense(self) -> Tensor:
        """H, (N, K, K), in the order of an example's flattened outputs."""
        rows = self.product(self._units(0, self.num_columns))
        return rows.reshape(self.num_columns, self.shape[0], self.num_columns).movedim(0, 1)

    def _units(self, start: int, stop: int) -> Tensor:
        """Unit vectors number start, ..., stop - 1 of an example's outputs, the same for every example."""
        places = torch.arange(self.num_columns, device=self.like.device)
        units = (places[start:stop, None] == places).to(self.like.dtype)
        return units.reshape(stop - start, 1, *self.shape[1:])


@dataclass(frozen=True)
class DiagonalHessian(OutputHessian):
    """Outputs that do not meet: H = diag(values), S = diag(√values)."""

    values: Tensor
    clipped: Tensor

    @property
    def like(self) -> Tensor:
        return self.values

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def product(self, v: Tensor) -> Tensor:
        return self.values * v

    def root_product(self, v: Tensor) -> Tensor:
        return self.values.sqrt() * v


@dataclass(frozen=True)
class SoftmaxHessian(OutputHessian):
    """Classes on axis 1: H = diag(p) − p pᵀ and S = diag(√p) − p √pᵀ, for each pixel by itself.

    S is not symmetric and needs no decomposition: S Sᵀ = diag(p) − 2 p pᵀ + (Σ p) p pᵀ. A column belongs to one class
    at one pixel; exciting several pixels at once would add products between them that H does not have.

    Args:
        probs: p, all zero at a pixel that says nothing.
        clipped: Zero.
    """

    probs: Tensor
    clipped: Tensor

    @property
    def like(self) -> Tensor:
        return self.probs

    @property
    def shape(self) -> torch.Size:
        return self.probs.shape

    def product(self, v: Tensor) -> Tensor:
        return self.probs * (v - self._sum_over_classes(self.probs * v))

    def root_product(self, v: Tensor) -> Tensor:
        scaled = self.probs.sqrt() * v
        return scaled - self.probs * self._sum_over_classes(scaled)

    def _sum_over_classes(self, v: Tensor) -> Tensor:
        return v.sum(dim=1 - self.probs.ndim, keepdim=True)  # counted from the end: v may have axes in front


@dataclass(frozen=True)
class DenseHessian(OutputHessian):
    """Any matrix, as its eigenvectors Q (N, K, K) and eigenvalues λ ≥ 0 (N, K): H = Q λ Qᵀ, S = Q √λ."""

    vectors: Tensor
    values: Tensor
    shape_of_outputs: torch.Size
    clipped: Tensor

    @property
    def like(self) -> Tensor:
        return self.values

    @property
    def shape(self) -> torch.Size:
        return self.shape_of_outputs

    def product(self, v: Tensor) -> Tensor:
        return self._shaped(_times(self.vectors, self.values * _times(self.vectors.mT, self._flat(v))))

    def root_product(self, v: Tensor) -> Tensor:
        return self._shaped(_times(self.vectors, self.values.sqrt() * self._flat(v)))

    def _flat(self, v: Tensor) -> Tensor:
        in_front = v.ndim - len(self.shape) + 1
        return v.reshape(*v.shape[:in_front], self.num_columns)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape[1:])


def _times(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def clipped_diagonal(values: Tensor) -> DiagonalHessian:
    """A diagonal Hessian of observed second derivatives, negative ones set to zero and reported."""
    return DiagonalHessian(values.clamp_min(0), negative_part(values))


def clipped_dense(matrices: Tensor, shape: torch.Size) -> DenseHessian:
    """Decompose symmetric (N, K, K), with negative eigenvalues set to zero and reported."""
    # eigh reads one triangle; rounding by autodiff differs between the two.
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    return DenseHessian(vectors, values.clamp_min(0), shape, negative_part(values))


def negative_part(values: Tensor) -> Tensor:
    """Minus the smallest value relative to the largest, 0-d: zero up to rounding, infinite where none is positive."""
    negative, positive = (-values).amax().clamp_min(0), values.amax().clamp_min(0)
    # Second derivatives cancel, so half of the digits is all that a sign can be trusted to.
    real = negative > positive * math.sqrt(torch.finfo(values.dtype).eps)
    return torch.where(real, negative / positive, 0.0)
