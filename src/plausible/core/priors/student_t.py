"""The Student t prior: between the normal (many degrees of freedom) and the Cauchy (one)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.log_densities import log_student_t
from plausible.core.priors.prior import Prior, standard_normal
from plausible.core.unknowns import known, require_scale


@dataclass(frozen=True)
class StudentT(Prior):
    """w / scale is Student t with ``df`` degrees of freedom; ``scale`` is not the standard deviation."""

    df: float | Tensor | Hyperprior = 5.0
    scale: float | Tensor | Hyperprior = 1.0

    def __post_init__(self):
        require_scale("df", self.df)
        require_scale("scale", self.scale)

    def log_prob(self, w: Tensor) -> Tensor:
        return log_student_t(w, known(self, "df"), known(self, "scale"))

    def score(self, w: Tensor) -> Tensor:
        df, scale = known(self, "df"), known(self, "scale")
        z = w / scale
        return -(df + 1) * z / (scale * (df + z * z))

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        normal = standard_normal(like, generator)
        df = torch.as_tensor(known(self, "df"), dtype=torch.float64, device="cpu").expand(like.shape)
        chi_square = 2 * torch._standard_gamma(df / 2, generator=generator)
        return (normal * torch.sqrt(df / chi_square)).to(like) * known(self, "scale")
