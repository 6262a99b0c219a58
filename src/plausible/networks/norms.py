"""Norms of convolutional networks by name, and those that torch lacks."""

import math

import torch
from torch import Tensor, nn

NORMS = ("batch", "group", "filter-response")


class FilterResponseNorm(nn.Module):
    """Divide each channel by its root mean square over the image (Singh & Krishnan, 2020, eq. 1-3).

    y = weight * x / sqrt(mean(x^2) + epsilon) + bias, for one example at a time: no batch statistics and no buffers, so
    examples stay independent. The mean is over the image, so images of a single pixel keep only their sign.
    """

    def __init__(self, channels: int, epsilon: float = 1e-6):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.square().mean((-2, -1), keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight[:, None, None] + self.bias[:, None, None]


class ThresholdedLinear(nn.Module):
    """max(x, threshold) with a learned threshold a channel, the activation that goes with filter-response norm (eq. 4).

    Filter-response norm does not centre, so zero is not the natural place for the kink.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.threshold = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.threshold[:, None, None])


class _StartsAtZero:
    """A norm whose output is zero at first, also after every later reset, so that its block starts as the identity."""

    weight: nn.Parameter

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]  # the norm it is mixed into
        nn.init.zeros_(self.weight)


class _ZeroBatchNorm(_StartsAtZero, nn.BatchNorm2d):
    pass


class _ZeroGroupNorm(_StartsAtZero, nn.GroupNorm):
    pass


class _ZeroFilterResponseNorm(_StartsAtZero, FilterResponseNorm):
    pass


def norm_named(name: str, channels: int, *, starts_at_zero: bool = False) -> nn.Module:
    """A new norm; a ValueError lists the names there are."""
    if name == "batch":
        return (_ZeroBatchNorm if starts_at_zero else nn.BatchNorm2d)(channels)
    if name == "group":
        # The paper's 32 groups (Wu & He, 2018), fewer where a group would have less than four channels.
        groups = math.gcd(channels, max(1, min(32, channels // 4)))
        return (_ZeroGroupNorm if starts_at_zero else nn.GroupNorm)(groups, channels)
    if name == "filter-response":
        return (_ZeroFilterResponseNorm if starts_at_zero else FilterResponseNorm)(channels)
    raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {name!r}")
