"""How sharply a log likelihood bends at most, from gradients alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...weights.algebra import Weights, norm
from .gaussian_prior import displaced, times

ROUNDS = 8  # of the power iteration: enough for the order of magnitude
REACH = 1e-2  # how far from the point gradients are compared


def sharpness(gradient: Callable[[Weights], Weights], params: Weights, start: Weights) -> Tensor:
    """The largest curvature of a function, whatever its sign, by the power iteration v ← H v / |H v|.

    H v is the difference of the gradients at w ± ε v, over 2 ε.

    Args:
        gradient: Of the function, at some weights.
        params: Where.
        start: A direction that is not zero.
    """
    direction, found = start, norm(start)
    for _ in range(ROUNDS):
        length = norm(direction).clamp(min=torch.finfo(torch.float32).tiny)
        shift = times(direction, REACH / length)
        ahead, behind = gradient(displaced(params, shift)), gradient(displaced(params, times(shift, -1.0)))
        direction = times(displaced(ahead, times(behind, -1.0)), 0.5 / REACH)
        found = norm(direction)
    return found
