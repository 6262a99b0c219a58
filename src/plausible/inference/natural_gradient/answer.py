"""What a run of a natural-gradient method ends with."""

from __future__ import annotations

from typing import TypeVar

import torch

from ...core.posteriors.gaussian import Gaussian
from ...weights import tree

Answer = TypeVar("Answer", bound=Gaussian)


def checked(answer: Answer) -> Answer:
    """The posterior itself, if all its numbers are finite.

    The last step's outcome is nowhere else looked at: the log joint that `fit` watches is that of the point before it.
    """
    for name, value in tree.leaves(answer.tensors):
        if not bool(torch.isfinite(value).all()):
            raise FloatingPointError(
                f"the posterior's {name} is not finite: most likely the learning rate is too large, try a tenth of it, or "
                "the last batch had values that are not finite"
            )
    return answer
