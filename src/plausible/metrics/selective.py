"""Selective prediction: does confidence know which answers are wrong? Any score that is higher when surer will do."""

import torch
from torch import Tensor

from plausible.metrics.inputs import (
    Array,
    as_tensors,
    nan_complaint,
    refuse,
    require_floating,
    require_one_shape,
    require_some,
)
from plausible.metrics.ranking import area_under_roc, average_over_ties


def aurc(confidence: Array, correct: Array) -> Tensor:
    """Area under the risk-coverage curve: the error rate among the k most confident answers, averaged over k = 1 ... N.

    Lower is better (Geifman & El-Yaniv, 2017). Equal confidences contribute their mean over all orders, so a constant
    confidence scores the plain error rate.

    Args:
        confidence: One value per answer; higher means surer. Need not be a probability.
        correct: Whether each answer is right, in the same shape; booleans or zeros and ones.
    """
    confidence, correct, dtype = _answers(confidence, correct)
    uncertainty, order = (-confidence).sort()
    errors = average_over_ties(uncertainty, ~correct[order])
    coverage = torch.arange(1, errors.numel() + 1, device=errors.device)
    return (errors.cumsum(0) / coverage).mean().to(dtype)


def auroc_error(confidence: Array, correct: Array) -> Tensor:
    """Probability that a right answer is held with more confidence than a wrong one, ties counting one half.

    NaN when all answers are right or all are wrong: there is nothing to separate.

    Args:
        confidence: One value per answer; higher means surer. Need not be a probability.
        correct: Whether each answer is right, in the same shape; booleans or zeros and ones.
    """
    confidence, correct, dtype = _answers(confidence, correct)
    return area_under_roc(confidence, correct).to(dtype)


def _answers(confidence: Array, correct: Array) -> tuple[Tensor, Tensor, torch.dtype]:
    confidence, correct = as_tensors({"confidence": confidence, "correct": correct})
    require_floating("confidence", confidence)
    require_one_shape({"confidence": confidence, "correct": correct})
    require_some("confidence", confidence)
    strange = (correct != 0) & (correct != 1)
    refuse(
        nan_complaint("confidence", confidence),
        (
            strange.any(),
            lambda: f"correct must be 0 or 1, got {correct[strange][0].item()}; did you mean probs.argmax(1) == y?",
        ),
    )
    sortable = torch.promote_types(confidence.dtype, torch.float32)
    return confidence.detach().flatten().to(sortable), correct.flatten().bool(), confidence.dtype
