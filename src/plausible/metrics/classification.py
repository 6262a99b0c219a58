"""Scores of predicted class probabilities: accuracy and the two proper scoring rules everybody reports."""

import torch
from torch import Tensor

from plausible.metrics.accumulation import share
from plausible.metrics.inputs import Array, labelled_probabilities


def accuracy(probs: Array, y: Array, *, ignore_index: int | None = None) -> Tensor:
    """Share of examples whose most probable class is the label. Among equally probable classes the first one counts.

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        ignore_index: Examples (pixels) with this label are left out.
    """
    cases = labelled_probabilities(probs, y, ignore_index)
    return share(cases.probs.argmax(1) == cases.labels, cases.dtype)


def nll(probs: Array, y: Array, *, ignore_index: int | None = None) -> Tensor:
    """Mean negative log likelihood of the labels, in nats.

    A label that was given probability zero makes it infinite. That is the honest score of a prediction that called the
    truth impossible, so nothing is clamped; average more samples, or predict in log space, if it is only rounding.

    Args:
        probs: Probabilities (not logits), (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        ignore_index: Examples (pixels) with this label are left out.
    """
    cases = labelled_probabilities(probs, y, ignore_index)
    of_label = cases.probs.gather(1, cases.labels.unsqueeze(1))
    # The floor only meets the rounding error of a zero (1 - p with p a little over one), which is infinite, not NaN.
    return -of_label.clamp(min=0).log().mean().to(cases.dtype)


def brier(probs: Array, y: Array, *, ignore_index: int | None = None) -> Tensor:
    """Brier score Σ_c (p_c - 1[y = c])², summed over classes, mean over examples; between 0 and 2 (Brier, 1950).

    Args:
        probs: Probabilities, (N, C) or (N, C, H, W).
        y: Labels, (N,) or (N, H, W).
        ignore_index: Examples (pixels) with this label are left out.
    """
    cases = labelled_probabilities(probs, y, ignore_index)
    labels = cases.labels.unsqueeze(1)
    # Subtracting before squaring keeps the digits that Σ p² - 2 p_y + 1 cancels when the prediction is nearly right.
    residual = cases.probs.scatter_add(1, labels, -torch.ones_like(labels, dtype=cases.probs.dtype))
    return residual.square().sum(1).mean().to(cases.dtype)
