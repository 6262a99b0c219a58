"""Why a run has to stop whose log joint is not finite, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def reason(step: int, *, broken: Sequence[str], batch: Any, before: Any, clip: str) -> str:
    """What is known of a step without a finite log joint, and the way out.

    The log joint is that of the point before its step, and the step itself spoils the weights when the log joint is not finite:
    which of them are none then says nothing.

    Args:
        step: The first such one.
        broken: Weights that are not finite where the log joint still was.
        batch: Of that step, None where it is not known any more.
        before: Of the step before, likewise.
        clip: A further way to shorten steps.
    """
    shorter = f"try a tenth of the learning rate or step size{clip}"
    stopped = f"the log joint stopped being finite at step {step}"
    if broken:
        return (
            f"{broken[0]} stopped being finite at step {step}: most likely the learning rate or step size is too large, "
            f"{shorter}"
        )
    if batch is not None and _not_finite(batch[0]):
        return f"{stopped}: the inputs of its batch are not finite, which they were in the data; look at augment"
    if before is not None and _not_finite(before[0]):
        return (
            f"{stopped}: the inputs of the batch before, at step {step - 1}, are not finite, which they were in the data, and "
            "spoiled its gradient; look at augment"
        )
    if step == 0:
        return (
            "the log joint is not finite at step 0 (of the first batch, before any step): the network's outputs or the "
            "likelihood are NaN or infinite at the weights that the run starts from, or at draws around them; look at them "
            "for a few inputs, scale the data, or start elsewhere with init="
        )
    return (
        f"{stopped}: either the steps before were too long, {shorter}, or the gradient of step {step - 1} was not finite "
        "although its log joint was, as that of a root at zero, or the network's outputs or the likelihood of this batch are "
        "NaN or infinite, such as after a log of what is not positive"
    )


def _not_finite(inputs: Any) -> bool:
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.is_floating_point()]
    return any(not bool(torch.isfinite(t).all()) for t in tensors)
