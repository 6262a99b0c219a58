"""Normal noise of one scale."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.likelihoods.likelihood import Likelihood, require_finite, require_one_shape, sum_over_example
from plausible.core.likelihoods.noise_scale import settle, tensor_like
from plausible.core.log_densities import log_normal
from plausible.core.unknowns import known


@dataclass(frozen=True)
class Normal(Likelihood):
    """y ~ N(outputs, scale²), independently for every output.

    Args:
        scale: The standard deviation: a number, a hyperprior, or ``"learn"`` for a flat prior on its logarithm.
    """

    task: ClassVar[Literal["classification", "regression"]] = "regression"
    scale: float | Tensor | Hyperprior | Literal["learn"] = 1.0

    def __post_init__(self):
        settle(self, "scale")

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        require_one_shape(outputs, y)
        return sum_over_example(log_normal(y - outputs, known(self, "scale")))

    def distribution(self, outputs: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(outputs, tensor_like(outputs, known(self, "scale")), validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        require_one_shape(outputs, y)
        require_finite(y)
