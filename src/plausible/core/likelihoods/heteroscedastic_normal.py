"""Normal noise whose scale the network predicts."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from plausible.core.likelihoods.likelihood import Likelihood, require_finite, require_one_shape, sum_over_example
from plausible.core.log_densities import log_normal

# Below this the scale stays put and its slope is zero, while the mean still learns. Without a floor softplus
# underflows, the density of a perfectly fitted target is unbounded, and gradients overflow; above it softplus is
# untouched.
SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class HeteroscedasticNormal(Likelihood):
    """y ~ N(mean, softplus(raw)²), where the last axis of the outputs holds D means and then D raw scales.

    Outputs (N, ..., 2D) go with targets (N, ..., D).
    """

    task: ClassVar[Literal["classification", "regression"]] = "regression"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, scale = mean_and_scale(outputs)
        require_one_mean_per_target(outputs, mean, y)
        return sum_over_example(log_normal(y - mean, scale))

    def distribution(self, outputs: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(*mean_and_scale(outputs), validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        require_one_mean_per_target(outputs, mean_and_scale(outputs)[0], y)
        require_finite(y)


def mean_and_scale(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split the last axis into means and positive scales."""
    if outputs.ndim < 2 or outputs.shape[-1] % 2:
        raise ValueError(
            f"the last axis of the outputs must hold D means and then D raw scales, got {tuple(outputs.shape)}; "
            f"give the network two outputs per target"
        )
    mean, raw = outputs.chunk(2, dim=-1)
    return mean, softplus(raw).clamp_min(SMALLEST_SCALE)


def require_one_mean_per_target(outputs: Tensor, mean: Tensor, y: Tensor) -> None:
    """Shapes only, as everywhere in a likelihood."""
    if outputs.shape == y.shape:
        raise ValueError(
            f"outputs must have a mean and a raw scale per target, got outputs and targets of one shape "
            f"{tuple(y.shape)}; give the network {2 * y.shape[-1]} outputs"
        )
    require_one_shape(mean, y)
