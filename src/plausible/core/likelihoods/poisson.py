"""Counts from log rates."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plausible.core.likelihoods import distributions
from plausible.core.likelihoods.likelihood import (
    Likelihood,
    first,
    require_finite,
    require_one_shape,
    sum_over_example,
)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """y ~ Poisson(exp(outputs)), independently for every output."""

    task: ClassVar[Literal["classification", "regression"]] = "regression"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        require_one_shape(outputs, y)
        y = y.to(outputs.dtype)
        return sum_over_example(y * outputs - torch.exp(outputs) - torch.lgamma(y + 1))

    def distribution(self, outputs: Tensor) -> distributions.Poisson:
        return distributions.Poisson(torch.exp(outputs), validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        require_one_shape(outputs, y)
        require_finite(y)
        wrong = (y < 0) | (y != y.round()) if y.is_floating_point() else y < 0
        if wrong.any():
            raise ValueError(
                f"counts must be whole numbers from 0, got {first(y, wrong)}; for other targets use Normal or StudentT"
            )
