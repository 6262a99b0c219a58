"""The Cauchy prior: tails so heavy that a few weights may be as large as they like."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.log_densities import log
from plausible.core.priors.prior import Prior, standard_uniform
from plausible.core.unknowns import known, require_scale


@dataclass(frozen=True)
class Cauchy(Prior):
    """p(w) = 1 / (π scale (1 + w² / scale²))."""

    scale: float | Tensor | Hyperprior = 1.0

    def __post_init__(self):
        require_scale("scale", self.scale)

    def log_prob(self, w: Tensor) -> Tensor:
        scale = known(self, "scale")
        z = w / scale
        return -torch.log1p(z * z) - log(math.pi * scale)

    def score(self, w: Tensor) -> Tensor:
        scale = known(self, "scale")
        z = w / scale
        return -2 * z / (scale * (1 + z * z))

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        standard = torch.tan(math.pi * (standard_uniform(like, generator) - 0.5))
        return standard.to(like) * known(self, "scale")
