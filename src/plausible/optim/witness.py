"""How a `GradScaler` has scaled the gradients, found out without asking it.

Products and squares of gradients are made while gradients come back, when they are still multiplied by the scaler's
factor; a step sees gradients without it, perhaps clipped. Clipping must not change a curvature (steps would get longer for
it), the scaler's factor must be taken out of it, and nobody says what it was. So there is one more parameter, which no
network has: its gradient is a tiny constant, and what the scaler makes of that is the factor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TINY = 2.0**-60  # far too small to count in a norm
LEAST_CLIPPING = 2.0**-7  # a smaller factor is taken for a scaler's, whatever it is
NAME = "(gradient scale)"


class Witness:
    """The parameter whose gradient goes through what the scaler does to all of an optimiser's parameters."""

    def __init__(self, like: Tensor):
        self.parameter = nn.Parameter(torch.zeros(1, device=like.device))

    def stand(self) -> None:
        """Gradients have come back, as the loss has them."""
        self.parameter.grad = torch.full_like(self.parameter, TINY)

    def factor(self) -> Tensor | None:
        """What gradients were multiplied by since, clipping apart; None where nothing is known.

        Scalers' factors are powers of two. One that is not is the clipping of a framework that clips an optimiser's
        parameters instead of the network's.
        """
        if self.parameter.grad is None:
            return None
        found = (self.parameter.grad.detach() / TINY).squeeze(0)
        exact = torch.frexp(found).mantissa == 0.5
        return torch.where(exact | (found < LEAST_CLIPPING), found, 1.0)
