"""How close one model's predictions are to another's, usually those of a long HMC run (Izmailov et al., 2021)."""

import torch
from torch import Tensor

from plausible.metrics.accumulation import share
from plausible.metrics.inputs import (
    Array,
    as_tensors,
    class_rows,
    probability_complaints,
    refuse,
    require_class_axis,
    require_one_shape,
)


def agreement(probs: Array, reference: Array) -> Tensor:
    """Share of examples for which both predict the same class. Among equally probable classes the first one counts.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        reference: Probabilities to compare with, in the same shape.
    """
    rows, reference_rows, dtype = _two_predictions(probs, reference)
    return share(rows.argmax(1) == reference_rows.argmax(1), dtype)


def total_variation(probs: Array, reference: Array) -> Tensor:
    """Total variation distance ½ Σ_c |p_c - q_c|, mean over examples; between 0 and 1.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        reference: Probabilities to compare with, in the same shape.
    """
    rows, reference_rows, dtype = _two_predictions(probs, reference)
    return ((rows - reference_rows).abs().sum(1).mean() / 2).to(dtype)


def _two_predictions(probs: Array, reference: Array) -> tuple[Tensor, Tensor, torch.dtype]:
    probs, reference = as_tensors({"probs": probs, "reference": reference})
    require_class_axis("probs", probs)
    require_class_axis("reference", reference)
    require_one_shape({"probs": probs, "reference": reference})
    refuse(*probability_complaints("probs", probs), *probability_complaints("reference", reference))
    return class_rows(probs), class_rows(reference), torch.promote_types(probs.dtype, reference.dtype)
