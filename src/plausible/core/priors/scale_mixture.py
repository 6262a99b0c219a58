"""A scale mixture of normals (Blundell et al., 2015, section 3.3): a spike near zero and a slab for what matters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.errors import require_positive
from plausible.core.log_densities import log, log_normal
from plausible.core.priors.prior import Prior, standard_normal, standard_uniform


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """p(w) = Σₖ weightsₖ N(w; 0, scalesₖ²).

    Args:
        scales: One standard deviation per component: numbers, or a tensor with the components along its first axis.
        weights: One probability per component, summing to one; alike.
    """

    scales: Sequence[float] | Tensor
    weights: Sequence[float] | Tensor

    def __post_init__(self):
        for name in ("scales", "weights"):
            values = getattr(self, name)
            if isinstance(values, Tensor):
                continue
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise TypeError(f"{name} must be a sequence of numbers or a tensor, got {values!r}")
            for value in values:
                require_positive(f"each of {name}", value)
            object.__setattr__(self, name, tuple(values))
        if len(self.scales) != len(self.weights) or len(self.scales) == 0:
            raise ValueError(
                f"scales and weights must have one entry per component, got {len(self.scales)} and {len(self.weights)}"
            )
        if not isinstance(self.weights, Tensor) and not math.isclose(sum(self.weights), 1, abs_tol=1e-6):
            raise ValueError(f"weights must sum to 1, got {self.weights}; divide them by {sum(self.weights)}")

    def log_prob(self, w: Tensor) -> Tensor:
        return torch.logsumexp(self._log_components(w), dim=0)

    def score(self, w: Tensor) -> Tensor:
        responsibilities = torch.softmax(self._log_components(w), dim=0)
        pull = sum(r / scale**2 for r, scale in zip(responsibilities, self.scales, strict=True))
        return -w * pull

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        normal = standard_normal(like, generator).to(like)
        weights = torch.as_tensor(self.weights, dtype=torch.float64, device="cpu")
        chosen = torch.bucketize(standard_uniform(like, generator), weights.cumsum(0)[:-1]).to(like.device)
        draw = torch.zeros_like(like)
        for k, scale in enumerate(self.scales):
            draw = torch.where(chosen == k, normal * scale, draw)
        return draw

    def _log_components(self, w: Tensor) -> Tensor:
        """log weightsₖ + log N(w; 0, scalesₖ²), components along a new first axis."""
        return torch.stack([log_normal(w, s) + log(p) for s, p in zip(self.scales, self.weights, strict=True)])
