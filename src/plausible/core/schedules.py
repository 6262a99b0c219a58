"""Learning-rate schedules: the multiple of the base rate as a function of progress in [0, 1), a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import NotSupported


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One rate throughout."""

    def __call__(self, progress: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(progress)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from 1 to `final`."""

    final: float = 0.0

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        return self.final + (1 - self.final) * 0.5 * (1 + torch.cos(math.pi * progress))


@dataclass(frozen=True, kw_only=True)
class OneCycle:
    """Up from `initial` to 1 over the first `rise` of the run, then down to `final`, both by half a cosine (Smith, 2018)."""

    rise: float = 0.3
    initial: float = 0.04
    final: float = 4e-6

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        up = (progress / self.rise).clamp(max=1.0)
        down = ((progress - self.rise) / (1 - self.rise)).clamp(min=0.0)
        rising = 1 + (self.initial - 1) * 0.5 * (1 + torch.cos(math.pi * up))
        falling = self.final + (1 - self.final) * 0.5 * (1 + torch.cos(math.pi * down))
        return torch.where(progress < self.rise, rising, falling)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A factor at each milestone, both given as shares of the run."""

    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        passed = torch.zeros_like(progress)
        for m in self.milestones:
            passed = passed + (progress >= m).to(progress.dtype)
        return self.factor**passed


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """A straight line from 0 over the first `share` of the run, times another schedule of the whole run."""

    share: float = 0.05
    then: Any = Cosine()

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        return (progress / self.share).clamp(min=1e-3, max=1.0) * self.then(progress)


@dataclass(frozen=True, kw_only=True)
class SWAGSchedule:
    """Maddox et al. (2019): 1 for half of the time before `start`, a line to `final` by nine tenths of it, then flat."""

    start: float = 0.75
    final: float = 0.4

    def __call__(self, progress: Tensor) -> Tensor:
        """The multiple at a point of the run."""
        along = (progress / self.start - 0.5) / 0.4
        return 1 - (1 - self.final) * along.clamp(min=0.0, max=1.0)


registry: dict[str, Callable[..., Any]] = {
    "constant": Constant,
    "cosine": Cosine,
    "one-cycle": OneCycle,
    "step": Step,
    "warm-up": WarmUp,
}


def schedule(name: Any) -> Callable[[Tensor], Tensor]:
    """A schedule by name, or the user's own function of progress."""
    if callable(name):
        return name
    if name not in registry:
        raise NotSupported(f"schedule {name!r} is not one of {sorted(registry)} or a function of progress")
    return registry[name]()
