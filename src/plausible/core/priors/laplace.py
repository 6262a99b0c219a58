"""The Laplace (double exponential) prior: sparse modes, as the lasso's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.log_densities import log
from plausible.core.priors.prior import Prior, standard_uniform
from plausible.core.unknowns import known, require_scale


@dataclass(frozen=True)
class Laplace(Prior):
    """p(w) = exp(-|w| / scale) / (2 scale); the standard deviation is √2 · scale."""

    smooth: ClassVar[bool] = False

    scale: float | Tensor | Hyperprior = 1.0

    def __post_init__(self):
        require_scale("scale", self.scale)

    def log_prob(self, w: Tensor) -> Tensor:
        scale = known(self, "scale")
        return -w.abs() / scale - log(2 * scale)

    def score(self, w: Tensor) -> Tensor:
        return -w.sign() / known(self, "scale")

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        centred = 2 * standard_uniform(like, generator) - 1
        standard = -centred.sign() * torch.log1p(-centred.abs())
        return standard.to(like) * known(self, "scale")
