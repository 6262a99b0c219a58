"""Convolution filters whose neighbouring entries resemble each other (Fortuin et al., 2022)."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from plausible.core.errors import require_positive
from plausible.core.log_densities import log_normal
from plausible.core.priors.prior import Prior, standard_normal


@dataclass(frozen=True)
class Correlated(Prior):
    """Each filter of a convolution is normal over its positions p, with covariance scale² exp(−‖p − q‖ / lengthscale).

    Filters are independent of one another: a weight (out, in, height, width) has out · in of them. Weights without
    positions, which are those with fewer than three axes, are plain N(0, scale²).
    """

    elementwise: ClassVar[bool] = False

    scale: float = 1.0
    lengthscale: float = 1.0
    _roots: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        require_positive("scale", self.scale)
        require_positive("lengthscale", self.lengthscale)

    def log_prob(self, w: Tensor) -> Tensor:
        """Of each entry given the ones before it in its filter, so that the sum is the joint density."""
        if w.dim() < 3:
            return log_normal(w, self.scale)
        root, inverse = self.roots(w)
        # With C = L Lᵀ and u = L⁻¹ w, log N(w; 0, C) = Σₖ [log N(uₖ; 0, 1) − log Lₖₖ].
        white = w.flatten(2) @ inverse.T
        return (log_normal(white, self.scale) - torch.log(root.diagonal())).reshape(w.shape)

    def score(self, w: Tensor) -> Tensor:
        if w.dim() < 3:
            return -w / self.scale**2
        _, inverse = self.roots(w)
        return (-(w.flatten(2) @ inverse.T @ inverse) / self.scale**2).reshape(w.shape)

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        standard = standard_normal(like, generator)
        if like.dim() >= 3:
            root, _ = self.roots(torch.empty((1, 1, *like.shape[2:]), dtype=torch.float64))
            standard = (standard.flatten(2) @ root.T).reshape(like.shape)
        return standard.to(like) * self.scale

    def roots(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The Cholesky factor of the positions' correlations and its inverse, made once for every kind of filter."""
        key = (tuple(like.shape[2:]), like.dtype, like.device)
        if key not in self._roots:
            axes = [torch.arange(n, dtype=torch.float64) for n in like.shape[2:]]
            positions = torch.cartesian_prod(*axes).reshape(math.prod(like.shape[2:]), -1)
            root = torch.linalg.cholesky(torch.exp(-torch.cdist(positions, positions) / self.lengthscale))
            inverse = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=torch.float64), upper=False)
            self._roots[key] = (root.to(like), inverse.to(like))
        return self._roots[key]
