"""Classes from logits."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plausible.core.likelihoods.likelihood import Likelihood, first, sum_over_example


@dataclass(frozen=True)
class Categorical(Likelihood):
    """p(y = c | outputs) = softmax(outputs)_c, with the classes on axis 1 as in ``cross_entropy``.

    Outputs (N, C) go with labels (N,), outputs (N, C, H, W) with labels (N, H, W).

    Args:
        ignore_index: A label that says nothing: those pixels contribute zero.
    """

    task: ClassVar[Literal["classification", "regression"]] = "classification"
    ignore_index: int | None = None

    def __post_init__(self):
        if isinstance(self.ignore_index, bool) or not isinstance(self.ignore_index, int | None):
            raise TypeError(f"ignore_index must be an integer label or None, got {self.ignore_index!r}")

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        _require_labels(outputs, y)
        labels = y.long()
        if self.ignore_index is not None:
            ignored = labels == self.ignore_index
            labels = labels.masked_fill(ignored, 0)
        # Not nll_loss: its CUDA kernels for images have no deterministic backward, a gather has.
        log_probs = torch.log_softmax(outputs, dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
        if self.ignore_index is not None:
            log_probs = log_probs.masked_fill(ignored, 0)
        return sum_over_example(log_probs)

    def distribution(self, outputs: Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=outputs.movedim(1, -1), validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        _require_labels(outputs, y)
        classes = outputs.shape[1]
        wrong = (y < 0) | (y >= classes)
        if self.ignore_index is not None:
            wrong &= y != self.ignore_index
        if wrong.any():
            raise ValueError(
                f"labels must be 0 to {classes - 1} for {classes} classes, got {first(y, wrong)}; give the network "
                f"more outputs, renumber the labels or set ignore_index"
            )


def _require_labels(outputs: Tensor, y: Tensor) -> None:
    """Shapes and dtypes only: free, and the commonest mistakes."""
    if outputs.ndim < 2:
        raise ValueError(f"outputs must be (N, classes, ...), got {tuple(outputs.shape)}; did you mean Bernoulli()?")
    if y.shape != outputs.shape[:1] + outputs.shape[2:]:
        raise ValueError(
            f"labels must have the shape of the outputs without their class axis 1, got outputs {tuple(outputs.shape)} "
            f"and labels {tuple(y.shape)}; {_way_to_labels(outputs, y)}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels must have an integer dtype, got {y.dtype}; did you mean targets.long()?")


def _way_to_labels(outputs: Tensor, y: Tensor) -> str:
    if outputs.shape == y.shape:
        return "did you mean targets.argmax(1), or Bernoulli()?"
    if (*outputs.shape[:1], *outputs.shape[2:], 1) == y.shape:
        return "did you mean targets.squeeze(-1)?"
    if (*outputs.shape[:1], 1, *outputs.shape[2:]) == y.shape:
        return "did you mean targets.squeeze(1)?"
    return f"expected {(*outputs.shape[:1], *outputs.shape[2:])}"
