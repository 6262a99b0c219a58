"""What a likelihood is, and the checks that likelihoods share."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution


class Likelihood(ABC):
    """p(y | outputs): what a network's outputs say about the targets.

    ``log_prob`` and ``distribution`` are the whole duty; an object with these two works everywhere without this class.

    Attributes:
        task: What kind of prediction it makes.
    """

    task: ClassVar[Literal["classification", "regression"]]

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(yᵢ | outputsᵢ), one value per example, summed over an example's other axes.

        Runs inside ``vmap``, ``compile`` and CUDA capture, so it looks at shapes and never at values.
        """

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """The distribution of y, its batch shape the shape of y."""

    @abstractmethod
    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Raise a ``ValueError`` if these targets cannot be what the likelihood describes; reads their values."""


def sum_over_example(values: Tensor) -> Tensor:
    """(N, ...) → (N,)."""
    return values if values.ndim == 1 else values.sum(dim=tuple(range(1, values.ndim)))


def require_one_shape(outputs: Tensor, y: Tensor) -> None:
    """Broadcasting (20, 1) against (20,) would give 400 residuals and no error."""
    if outputs.shape == y.shape and y.ndim > 0:
        return
    raise ValueError(
        f"outputs and targets must have one shape, got {tuple(outputs.shape)} and {tuple(y.shape)}; "
        f"{_way_to_one_shape(outputs, y)}"
    )


def _way_to_one_shape(outputs: Tensor, y: Tensor) -> str:
    if (*y.shape, 1) == outputs.shape:
        return "did you mean targets.unsqueeze(-1)?"
    if (*outputs.shape, 1) == y.shape:
        return "did you mean targets.squeeze(-1)?"
    if y.ndim > 0 and (*y.shape[:-1], 2 * y.shape[-1]) == outputs.shape:
        return "did you mean HeteroscedasticNormal(), for a mean and a scale per target?"
    return "the first axis counts examples and the network gives one output per target"


def require_finite(y: Tensor) -> None:
    """NaN targets would make every weight NaN."""
    if not y.is_floating_point():
        return
    bad = ~torch.isfinite(y)
    if bad.any():
        raise ValueError(f"targets must be finite, got {first(y, bad)}; drop these examples or fill the value in")


def first(y: Tensor, where: Tensor) -> str:
    """The first offending value and its place, for an error message."""
    place = where.nonzero()[0].tolist()
    return f"{y[tuple(place)].item()} at {place[0] if len(place) == 1 else tuple(place)}"
