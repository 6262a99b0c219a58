"""Priors that shrink with a layer's width, so that wide networks keep sensible functions (Neal, 1996)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.priors.prior import Prior
from plausible.core.priors.scaled import ScaledPrior


def fan_in(prior: Prior) -> "FanIn":
    """``prior`` with its scale divided by √fan-in of the weight it is applied to."""
    return FanIn(prior)


@dataclass(frozen=True)
class FanIn(Prior):
    """√fan-in · w follows ``prior``, which may be any elementwise one.

    Fan-in is the product of all axes but the first; biases and other weights with fewer than two axes keep the
    prior's own scale.
    """

    prior: Prior

    def __post_init__(self):
        if isinstance(self.prior, ScaledPrior):
            raise TypeError(
                f"fan_in goes inside a hierarchy, Hierarchical(family=fan_in(Normal())), got fan_in({self.prior!r})"
            )
        if isinstance(self.prior, type) or not hasattr(self.prior, "log_prob"):
            raise TypeError(f"fan_in needs a prior such as Normal(scale=1.0), got {self.prior!r}")

    def log_prob(self, w: Tensor) -> Tensor:
        root = _root_fan_in(w)
        return self.prior.log_prob(w * root) + math.log(root)

    # A prior without a score or a precision lends none: both are None here too, as callers expect.

    @property
    def score(self) -> Callable[[Tensor], Tensor] | None:  # type: ignore[override]
        inner = getattr(self.prior, "score", None)
        return None if inner is None else lambda w: inner(w * _root_fan_in(w)) * _root_fan_in(w)

    @property
    def precision(self) -> Callable[[Tensor], Tensor] | None:  # type: ignore[override]
        inner = getattr(self.prior, "precision", None)
        return None if inner is None else lambda w: inner(w) * _root_fan_in(w) ** 2

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """As the inner prior is."""
        return getattr(self.prior, "elementwise", True)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As the inner prior is."""
        return getattr(self.prior, "smooth", True)

    def fixed_precision(self, shape: torch.Size) -> float | None:
        """The inner prior's, times fan-in."""
        inner = getattr(self.prior, "fixed_precision", None)
        value = inner(shape) if callable(inner) else None
        return None if value is None else value * max(1, math.prod(shape[1:]))

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.prior.sample(like, generator) / _root_fan_in(like)


def _root_fan_in(w: Tensor) -> float:
    return math.sqrt(max(1, math.prod(w.shape[1:])))  # the product of no axes is 1: a bias is left alone
