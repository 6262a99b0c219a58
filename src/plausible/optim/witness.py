"""How a `GradScaler` has scaled the gradients, found out without asking it.

Products and squares of gradients are made while gradients come back, when they are still multiplied by the scaler's
factor; a step sees gradients without it, perhaps clipped. Clipping must not change a curvature (steps would get longer for
it), the scaler's factor must be taken out of it, and nobody says what it was. So there is one more parameter, which no
network has: its gradient is a tiny constant that notes by what a scaler multiplies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

TINY = 2.0**-60  # far too small to count in a norm
NAME = "(gradient scale)"
UNSCALE = torch._amp_foreach_non_finite_check_and_unscale_


class Noting(Tensor):
    """A gradient that remembers the factors that scalers multiplied it by."""

    factors: list[Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is UNSCALE:
            gradients, _, factor = args
            for own in gradients:
                if isinstance(own, Noting):
                    own.factors.append(factor.detach().clone())
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            noted = [t for t in args if isinstance(t, Noting)]
            # A gradient that is replaced instead of written into, as by `p.grad = p.grad * factor`, remembers as much.
            if noted and type(found) is Tensor and found.is_floating_point() and found.shape == noted[0].shape:
                found = found.as_subclass(cls)
                found.factors = list(noted[0].factors)
            return found


class Witness:
    """The parameter whose gradient goes through what the scaler does to all of an optimiser's parameters."""

    def __init__(self, like: Tensor):
        self.parameter = nn.Parameter(torch.zeros(1, device=like.device))

    def stand(self) -> None:
        """Gradients have come back, as the loss has them."""
        gradient = torch.full_like(self.parameter, TINY, requires_grad=False).as_subclass(Noting)
        gradient.factors = []
        self.parameter.grad = gradient

    def factor(self) -> Tensor | None:
        """What gradients were multiplied by since, clipping apart; None where nothing is known.

        What no scaler did is a loop that scales by itself, if it is a power of two, and otherwise the clipping of a framework
        that clips an optimiser's parameters instead of the network's.
        """
        gradient = self.parameter.grad
        if gradient is None:
            return None
        with torch._C.DisableTorchFunctionSubclass():
            rest = (gradient.detach().double() / TINY).squeeze(0)
            told = torch.ones_like(rest)
            for factor in gradient.factors if isinstance(gradient, Noting) else ():
                told = told * factor.double().squeeze()
            rest = (rest / told).float()
            return told * torch.where(torch.frexp(rest).mantissa == 0.5, rest, 1.0).double()
