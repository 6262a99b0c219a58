"""No belief at all: maximum likelihood, said as a prior."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.errors import NotSupported
from plausible.core.priors.prior import Prior


@dataclass(frozen=True)
class Flat(Prior):
    """p(w) ∝ 1. Improper, so it cannot be drawn from and gives no evidence."""

    def log_prob(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)

    def score(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        raise NotSupported("a flat prior cannot be sampled; Normal, Laplace, Cauchy, StudentT and ScaleMixture can")
