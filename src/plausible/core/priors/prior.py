"""What a prior is: a density of each weight, elementwise."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor


class Prior(ABC):
    """A zero-centred density of every entry of a weight tensor.

    Attributes:
        score: ``score(w)``, the slope of ``log_prob`` elementwise, or None where autograd should find it.
        precision: ``precision(w)`` in w's shape for a prior that is normal and elementwise, None for any other.
        elementwise: Whether entries are independent of each other. Where not, ``log_prob`` gives each entry's conditional
            density, and only the sum means something.
        smooth: Whether ``log_prob`` has second derivatives everywhere.
    """

    score: ClassVar[Callable[..., Tensor] | None] = None
    precision: ClassVar[Callable[..., Tensor] | None] = None
    elementwise: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    @abstractmethod
    def log_prob(self, w: Tensor) -> Tensor:
        """log p of each entry, in w's shape and dtype; the model sums."""

    @abstractmethod
    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A draw in the shape and dtype and on the device of ``like``; ``generator`` lives on the CPU."""


# Standard draws are made in float64 and then rounded: a uniform bfloat16 has 256 values and no tails, and a seed
# means the same weights in every precision and on every device.


def standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """N(0, 1) in float64 on the CPU."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)


def standard_uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform on the open interval (0, 1) in float64 on the CPU."""
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    return uniform.clamp_min(2.0**-54)
