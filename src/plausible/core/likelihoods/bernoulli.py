"""Yes or no, from logits."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from plausible.core.likelihoods.likelihood import (
    Likelihood,
    first,
    require_finite,
    require_one_shape,
    sum_over_example,
)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """p(y = 1 | outputs) = sigmoid(outputs), independently for every output; y may be a probability."""

    task: ClassVar[Literal["classification", "regression"]] = "classification"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        require_one_shape(outputs, y)
        y = y.to(outputs.dtype)
        return sum_over_example(y * logsigmoid(outputs) + (1 - y) * logsigmoid(-outputs))

    def distribution(self, outputs: Tensor) -> torch.distributions.Bernoulli:
        return torch.distributions.Bernoulli(logits=outputs, validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        require_one_shape(outputs, y)
        require_finite(y)
        wrong = (y < 0) | (y > 1)
        if wrong.any():
            raise ValueError(f"targets must lie in [0, 1], got {first(y, wrong)}; did you mean Categorical()?")
