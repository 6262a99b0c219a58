"""Distributions with all that a predictive mixture asks of its parts: mean, variance, log_prob, cdf and sample.

torch has no cdf for the Student t and the Poisson, and no truncated normal.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from plausible.core.log_densities import log_ndtr, log_normal


class StudentT(torch.distributions.StudentT):
    """torch's, with a cdf."""

    def cdf(self, value: Tensor) -> Tensor:
        """Computed by scipy in float64 on the CPU, so without a gradient and not inside ``vmap``."""
        from scipy.special import stdtr  # comes with scikit-learn; slow to import, seldom needed

        z = ((value - self.loc) / self.scale).detach()
        df, z = torch.broadcast_tensors(self.df.detach(), z)
        return torch.as_tensor(stdtr(df.double().cpu().numpy(), z.double().cpu().numpy())).to(z)


class Poisson(torch.distributions.Poisson):
    """torch's, with a cdf."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(count ≤ value) = Q(⌊value⌋ + 1, rate), the regularised upper incomplete gamma function."""
        below_zero = value < 0
        count = torch.floor(value).masked_fill(below_zero, 0)
        return torch.special.gammaincc(count + 1, self.rate).masked_fill(below_zero, 0)


class TruncatedNormal(Distribution):
    """N(loc, scale²) given that the value is above ``low``.

    Right far out in the tail, where loc lies hundreds of scales below ``low``.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "low": constraints.real}
    has_rsample = False

    def __init__(self, loc: Tensor, scale: float | Tensor, low: float | Tensor, validate_args: bool | None = None):
        self.loc, self.scale, self.low = broadcast_all(loc, scale, low)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.greater_than_eq(self.low)

    def expand(self, batch_shape, _instance=None) -> "TruncatedNormal":
        new = self._get_checked_instance(TruncatedNormal, _instance)
        new.loc, new.scale, new.low = (t.expand(batch_shape) for t in (self.loc, self.scale, self.low))
        super(TruncatedNormal, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        cut, hazard = self._cut_and_hazard()
        # low + scale (h(a) - a) is loc + scale h(a) written so that a distant loc does not cancel.
        return (self.low.double() + self.scale.double() * (hazard - cut)).to(self.loc.dtype)

    @property
    def variance(self) -> Tensor:
        """scale² (1 - h(a) (h(a) - a)), with a = (low - loc) / scale and h the hazard of the standard normal."""
        cut, hazard = self._cut_and_hazard()
        far = cut > 100  # past it the difference cancels in float64 too, and the asymptotic series is exact enough
        inverse_square = cut.masked_fill(~far, 1).pow(-2)
        series = inverse_square * (1 - 6 * inverse_square + 50 * inverse_square**2)
        ratio = torch.where(far, series, 1 - hazard * (hazard - cut))
        return (self.scale.double() ** 2 * ratio).to(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = log_normal(value - self.loc, self.scale) - log_ndtr((self.loc - self.low) / self.scale)
        return inside.masked_fill(value < self.low, -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        value = torch.maximum(value, self.low)
        log_survival = log_ndtr((self.loc - value) / self.scale) - log_ndtr((self.loc - self.low) / self.scale)
        return -torch.expm1(log_survival)

    def icdf(self, value: Tensor) -> Tensor:
        return self._from_log_survival(torch.log1p(-value.double()))

    def sample(self, sample_shape=()) -> Tensor:
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            uniform = 1 - torch.rand(shape, dtype=torch.float64, device=self.loc.device)  # (0, 1]: no log of zero
            return self._from_log_survival(torch.log(uniform))

    def _cut_and_hazard(self) -> tuple[Tensor, Tensor]:
        """a = (low - loc) / scale and h(a) = φ(a) / (1 - Φ(a)), in float64: the moments are differences of these."""
        cut = (self.low.double() - self.loc.double()) / self.scale.double()
        return cut, math.sqrt(2 / math.pi) / torch.special.erfcx(cut * math.sqrt(0.5))

    def _from_log_survival(self, log_survival: Tensor) -> Tensor:
        """The value that a quantity above ``low`` exceeds with the given log probability, by Newton on log(1 - Φ)."""
        cut, _ = self._cut_and_hazard()
        target = log_survival + log_ndtr(-cut)
        # log(1 - Φ) is concave and nearly -z²/2 in the tail, so this start is close there; elsewhere ndtri is exact.
        tail = target < -10
        z = torch.sqrt(torch.where(tail, -2 * target, 1))
        for _ in range(5):
            hazard = math.sqrt(2 / math.pi) / torch.special.erfcx(z * math.sqrt(0.5))
            z = z + (log_ndtr(-z) - torch.where(tail, target, -1)) / hazard
        z = torch.where(tail, z, -torch.special.ndtri(torch.exp(target)))
        value = self.loc.double() + self.scale.double() * z
        return torch.maximum(value, self.low.double()).to(self.loc.dtype)
