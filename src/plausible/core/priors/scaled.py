"""Priors of the form w = s · z, with unknown scales s that many weights share.

Such a prior covers all weights of a network at once, since it must say who shares a scale. The model can keep z or w
among its unknowns. Keeping z, which is called *non-centred*, makes z and s independent before the data, so samplers are
spared the funnel: the narrower s, the narrower everything else.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.priors.prior import Prior


@dataclass(frozen=True)
class Place:
    """Where a weight stands: its shape, and whether its first axis counts inputs, as an embedding's does."""

    shape: tuple[int, ...]
    inputs_first: bool = False

    @property
    def unit_axis(self) -> int | None:
        """The axis of output units or filters."""
        return None if not self.shape else 1 if self.inputs_first and len(self.shape) > 1 else 0

    @property
    def input_axis(self) -> int | None:
        """The axis of inputs; a bias has none."""
        return None if len(self.shape) < 2 else 0 if self.inputs_first else 1

    def along(self, axis: int | None) -> tuple[int, ...]:
        """The weight's shape with ones for all axes but one."""
        return tuple(n if i == axis else 1 for i, n in enumerate(self.shape))


@dataclass(frozen=True)
class Factor:
    """One unknown that multiplies a weight.

    Attributes:
        name: Of the unknown, behind `prior.`.
        hyperprior: Of each of its entries.
        shape: In which the unknown is kept.
        view: The same numbers in a shape with as many axes as the weight, which broadcasts against it.
    """

    name: str
    hyperprior: Hyperprior
    shape: tuple[int, ...]
    view: tuple[int, ...]

    def seen(self, value: Tensor) -> Tensor:
        """A value beside its weight; leading axes, as of several draws, stay in front."""
        return value.reshape(*value.shape[: value.dim() - len(self.shape)], *self.view)

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return math.prod(self.shape)


class ScaledPrior(ABC):
    """w = s · z with z from `standard` and s a product of unknown factors.

    Attributes:
        centred: Whether the model keeps w among its unknowns, instead of z.
    """

    centred: bool

    @property
    @abstractmethod
    def standard(self) -> Prior:
        """The density of z."""

    @abstractmethod
    def factors(self, weights: Mapping[str, Place]) -> dict[str, tuple[Factor, ...]]:
        """What multiplies each of the weights that this prior covers."""

    def settled(self) -> Prior | None:
        """The same prior where nothing about it is unknown, else None."""
        return None


@dataclass(frozen=True)
class Rescaled(Prior):
    """w / scale follows `standard`: what a scaled prior says of w once the scale has a value."""

    standard: Prior
    scale: Tensor

    def log_prob(self, w: Tensor) -> Tensor:
        return self.standard.log_prob(w / self.scale) - torch.log(self.scale)

    @property
    def precision(self) -> Callable[[Tensor], Tensor] | None:  # type: ignore[override]
        inner = getattr(self.standard, "precision", None)
        return None if inner is None else lambda w: inner(w) / self.scale**2

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """As the standard density is."""
        return self.standard.elementwise

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As the standard density is."""
        return self.standard.smooth

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.standard.sample(like, generator) * self.scale
