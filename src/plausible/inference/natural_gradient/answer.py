"""What a run of a natural-gradient method ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.posteriors.gaussian import Diagonal, Gaussian
from ...weights import tree

Answer = TypeVar("Answer", bound=Gaussian)

MOST_REMEMBERED = 0.1  # share of the initial curvature in that of an answer, above which it is named,
MOST_DECIDED = 0.01  # and of weights of whose precision it is the most


def checked(answer: Answer) -> Answer:
    """The posterior itself, if all its numbers are finite and all its deviations positive.

    The last step's outcome is nowhere else looked at: the log joint that `fit` watches is that of the point before it.
    """
    require_finite(answer.tensors)
    for name, scale in answer.scale.items() if isinstance(answer, Diagonal) else ():
        if not bool((scale > 0).all()):
            raise FloatingPointError(
                f"the posterior's scale of {name} is 0 somewhere: its curvature is more than {scale.dtype} holds, because steps "
                "were far too long, try a tenth of the learning rate, or data are in large units; give inputs, targets and noise "
                "sizes near one, or compute in float64"
            )
    return answer


def require_finite(tensors: dict[str, Any]) -> None:
    """Raise if a posterior of these tensors would not be one."""
    for name, value in tree.leaves(tensors):
        if not bool(torch.isfinite(value).all()):
            raise FloatingPointError(
                f"the posterior's {name} is not finite: most likely the learning rate is too large, try a tenth of it, or "
                "the last batch had values that are not finite"
            )


def judged(
    share: float, steps: int, decay: str, initial: str, way_out: str, decided: float = 0.0
) -> Diagnostics | None:
    """Whether widths are the data's, or still those of the curvature that the run started from.

    Args:
        share: Of it that is left.
        steps: Of the run.
        decay: The setting that forgets it, with its value.
        initial: The setting that it comes from.
        way_out: What lets it be forgotten.
        decided: Share of the weights of whose precision it is more than half.
    """
    made = "1 step" if steps == 1 else f"{steps} steps"
    if share > MOST_REMEMBERED:
        said = (
            f"after {made} with {decay} the curvature still has {share:.0%} of {initial}, which then decides how wide the "
            f"posterior is; {way_out}"
        )
        return Diagnostics(messages=(said,), ok=False)
    if decided > MOST_DECIDED:
        said = (
            f"of {decided:.0%} of the weights data say so little that their widths are set by {initial}, of which {made} with "
            f"{decay} have left {share:.2g}, and are smaller than the best ones, under which a deep network may learn nothing; "
            f"where yours learns under them, {way_out}"
        )
        return Diagnostics(messages=(said,))
    return None


def decided_by(part: Any, metric: Mapping[str, Tensor]) -> float:
    """The share of the weights with less than twice this much of curvature and prior together."""
    few = sum(int((m < 2 * torch.as_tensor(part, device=m.device)).sum()) for m in metric.values())
    return few / sum(m.numel() for m in metric.values())
