"""The normal prior: weight decay, said as a belief."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.log_densities import log_normal
from plausible.core.priors.prior import Prior, standard_normal
from plausible.core.unknowns import known, require_scale


@dataclass(frozen=True)
class Normal(Prior):
    """w ~ N(0, scale²)."""

    scale: float | Tensor | Hyperprior = 1.0

    def __post_init__(self):
        require_scale("scale", self.scale)

    def log_prob(self, w: Tensor) -> Tensor:
        return log_normal(w, known(self, "scale"))

    def score(self, w: Tensor) -> Tensor:
        return -w / known(self, "scale") ** 2

    def precision(self, w: Tensor) -> Tensor:
        """1 / scale² in w's shape."""
        return torch.ones_like(w) / known(self, "scale") ** 2

    def fixed_precision(self, shape: torch.Size) -> float | None:
        """1 / scale² as a number, None where the scale is a tensor or unknown."""
        return None if isinstance(self.scale, Tensor | Hyperprior) else float(self.scale) ** -2

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return standard_normal(like, generator).to(like) * known(self, "scale")
