"""Calibration of the top label: of the predictions made with confidence 0.8, are 80 % right?"""

from typing import NamedTuple

import torch
from torch import Tensor

from plausible.metrics.accumulation import wide
from plausible.metrics.inputs import Array, labelled_probabilities, require_bins
from plausible.metrics.ranking import average_over_ties


class CalibrationCurve(NamedTuple):
    """What a reliability diagram draws, one entry per bin. Empty bins have a count of zero and NaN elsewhere."""

    confidence: Tensor  # (bins,), mean confidence
    accuracy: Tensor  # (bins,), share of right answers
    count: Tensor  # type: ignore[assignment]  # (bins,), number of examples; hides tuple.count, which nobody misses


def calibration_curve(probs: Array, y: Array, bins: int = 15, *, ignore_index: int | None = None) -> CalibrationCurve:
    """Mean confidence, accuracy and number of examples in equally wide bins of the top label's probability.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        bins: Number of bins; they are open on the left and closed on the right, as in `ece`.
        ignore_index: Examples (pixels) with this label are left out.
    """
    confidence, correct, dtype = _top_label(probs, y, bins, ignore_index)
    confidence_sum, num_correct, count = _totals(confidence, correct, _equal_width(confidence, bins), bins)
    return CalibrationCurve(
        confidence=(confidence_sum / count).to(dtype),
        accuracy=(num_correct / count).to(dtype),
        count=count.long(),
    )


def ece(probs: Array, y: Array, bins: int = 15, *, ignore_index: int | None = None) -> Tensor:
    """Expected calibration error Σ_b (n_b / N) |accuracy_b - confidence_b| over equally wide bins (Guo et al., 2017).

    Bin b is ((b - 1) / bins, b / bins], as in the paper. Torchmetrics closes its bins on the left instead, so the two
    differ when a confidence is exactly an edge (one of 0.8 with 5 bins, say), and only then.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        bins: Number of bins; empty ones weigh nothing.
        ignore_index: Examples (pixels) with this label are left out.
    """
    confidence, correct, dtype = _top_label(probs, y, bins, ignore_index)
    return _calibration_error(confidence, correct, _equal_width(confidence, bins), bins).to(dtype)


def ace(probs: Array, y: Array, bins: int = 15, *, ignore_index: int | None = None) -> Tensor:
    """Adaptive calibration error: like `ece`, but the bins hold equally many examples (Nixon et al., 2019).

    The bins are over the top label's probability, where the paper averages over every class. Where equal confidences
    fall on both sides of a boundary, their right answers are shared out evenly, so the order of examples is irrelevant.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        bins: Number of bins; their sizes differ by one at most, and with fewer examples than bins each has its own.
        ignore_index: Examples (pixels) with this label are left out.
    """
    confidence, correct, dtype = _top_label(probs, y, bins, ignore_index)
    confidence, order = confidence.sort()
    count = confidence.numel()
    equal_mass = torch.arange(count, device=confidence.device) * bins // count
    correct = average_over_ties(confidence, correct[order])
    return _calibration_error(confidence, correct, equal_mass, bins).to(dtype)


def _top_label(probs: Array, y: Array, bins: int, ignore_index: int | None) -> tuple[Tensor, Tensor, torch.dtype]:
    require_bins(bins)
    cases = labelled_probabilities(probs, y, ignore_index)
    confidence, guess = cases.probs.detach().max(1)
    return confidence, guess == cases.labels, cases.dtype


def _equal_width(confidence: Tensor, bins: int) -> Tensor:
    # Dividing gives the float nearest to b / bins, which linspace does not: so 0.8 is exactly an edge of 5 bins.
    inner_edges = torch.arange(1, bins, device=confidence.device, dtype=confidence.dtype) / bins
    return torch.bucketize(confidence, inner_edges)


def _totals(confidence: Tensor, correct: Tensor, bin_of: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin: sum of confidences, number of right answers, number of examples."""

    def per_bin(values: Tensor) -> Tensor:
        return wide(values.new_zeros(bins)).scatter_add(0, bin_of, wide(values))

    return per_bin(confidence), per_bin(correct), per_bin(torch.ones_like(confidence))


def _calibration_error(confidence: Tensor, correct: Tensor, bin_of: Tensor, bins: int) -> Tensor:
    confidence_sum, num_correct, _ = _totals(confidence, correct, bin_of, bins)
    # (n_b / N) |mean - mean| without the division by n_b, which is zero in an empty bin.
    return (num_correct - confidence_sum).abs().sum() / confidence.numel()
