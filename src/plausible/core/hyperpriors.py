"""Beliefs about a scale s > 0 that is itself unknown: the noise of a likelihood, the width of a prior.

A hyperprior is put where a number would go, ``Normal(scale=HalfCauchy())``; the field is then an unknown of the model.
Densities are plain formulas: ``torch.distributions`` objects build tensors from numbers at every call, which is slow
and forbidden while a CUDA graph is captured.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from plausible.core.errors import NotSupported, require_finite, require_positive


class Hyperprior(ABC):
    """A density of a positive value.

    Attributes:
        constraint: Where the natural value lives; ``torch.distributions.biject_to`` turns it into a map.
        vanishes_at_zero: Whether p(s) → 0 as s → 0. Where it does not, a hierarchical scale has no mode.
    """

    constraint: ClassVar[constraints.Constraint] = constraints.positive
    vanishes_at_zero: ClassVar[bool]

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """log p(s) of the natural value, elementwise."""

    @property
    @abstractmethod
    def start(self) -> float:
        """The natural value where a run starts: the mode of the density of log s."""

    @property
    def median(self) -> float | None:
        """Half of the mass is below it; None where the density is improper."""
        return None

    @abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        generator: torch.Generator | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw on the CPU, where the generator lives, then move."""


def _moved(draws: Tensor, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    return draws.to(device=device, dtype=dtype or torch.get_default_dtype())


@dataclass(frozen=True)
class HalfNormal(Hyperprior):
    """s = |z| with z ~ N(0, scale²)."""

    vanishes_at_zero: ClassVar[bool] = False
    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale", self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        z = value / self.scale
        return -0.5 * z * z + (0.5 * math.log(2 / math.pi) - math.log(self.scale))

    @property
    def start(self) -> float:
        return float(self.scale)

    @property
    def median(self) -> float:
        return self.scale * math.sqrt(2) * float(torch.erfinv(torch.tensor(0.5, dtype=torch.float64)))

    def sample(self, shape, generator=None, *, dtype=None, device=None) -> Tensor:
        draws = torch.randn(tuple(shape), generator=generator, dtype=torch.float64).abs() * self.scale
        return _moved(draws, dtype, device)


@dataclass(frozen=True)
class HalfCauchy(Hyperprior):
    """s = |z| with z ~ Cauchy(0, scale) (Gelman, 2006)."""

    vanishes_at_zero: ClassVar[bool] = False
    scale: float = 1.0

    def __post_init__(self):
        require_positive("scale", self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        z = value / self.scale
        return -torch.log1p(z * z) + (math.log(2 / math.pi) - math.log(self.scale))

    @property
    def start(self) -> float:
        return float(self.scale)

    @property
    def median(self) -> float:
        return float(self.scale)

    def sample(self, shape, generator=None, *, dtype=None, device=None) -> Tensor:
        uniform = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
        return _moved(torch.tan(0.5 * math.pi * uniform) * self.scale, dtype, device)


@dataclass(frozen=True)
class LogNormal(Hyperprior):
    """log s ~ N(loc, scale²)."""

    vanishes_at_zero: ClassVar[bool] = True
    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self):
        require_finite("loc", self.loc)
        require_positive("scale", self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        log_value = torch.log(value)
        z = (log_value - self.loc) / self.scale
        return -0.5 * z * z - log_value - (0.5 * math.log(2 * math.pi) + math.log(self.scale))

    @property
    def start(self) -> float:
        return math.exp(self.loc)

    @property
    def median(self) -> float:
        return math.exp(self.loc)

    def sample(self, shape, generator=None, *, dtype=None, device=None) -> Tensor:
        z = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
        return _moved(torch.exp(self.loc + self.scale * z), dtype, device)


@dataclass(frozen=True)
class InverseGamma(Hyperprior):
    """s² ~ InverseGamma(concentration, rate): the conjugate belief about the variance of a normal.

    ``log_prob`` is the density of s itself, p(s) = 2s · p(s²).
    """

    vanishes_at_zero: ClassVar[bool] = True
    concentration: float = 1.0
    rate: float = 1.0

    def __post_init__(self):
        require_positive("concentration", self.concentration)
        require_positive("rate", self.rate)

    def log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration, self.rate
        constant = math.log(2) + a * math.log(b) - math.lgamma(a)
        return constant - (2 * a + 1) * torch.log(value) - b / (value * value)

    @property
    def start(self) -> float:
        return math.sqrt(self.rate / self.concentration)

    @property
    def median(self) -> float:
        from scipy.special import gammaincinv  # not with the library: it takes a quarter of a second

        return math.sqrt(self.rate / float(gammaincinv(self.concentration, 0.5)))

    def sample(self, shape, generator=None, *, dtype=None, device=None) -> Tensor:
        concentration = torch.full(tuple(shape), float(self.concentration), dtype=torch.float64)
        precision = torch._standard_gamma(concentration, generator=generator) / self.rate
        return _moved(precision.rsqrt(), dtype, device)


@dataclass(frozen=True)
class LogFlat(Hyperprior):
    """Flat on log s, p(s) ∝ 1/s: what ``"learn"`` means. Improper, so it cannot be drawn from."""

    vanishes_at_zero: ClassVar[bool] = False

    def log_prob(self, value: Tensor) -> Tensor:
        return -torch.log(value)

    @property
    def start(self) -> float:
        return 1.0

    def sample(self, shape, generator=None, *, dtype=None, device=None) -> Tensor:
        raise NotSupported(
            "a flat density on log s cannot be sampled; HalfNormal, HalfCauchy, LogNormal and InverseGamma can"
        )


registry: dict[str, type] = {
    "HalfNormal": HalfNormal,
    "HalfCauchy": HalfCauchy,
    "LogNormal": LogNormal,
    "InverseGamma": InverseGamma,
    "LogFlat": LogFlat,
}
