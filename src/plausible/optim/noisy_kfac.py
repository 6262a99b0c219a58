"""Noisy K-FAC (Zhang et al., 2018) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..inference.natural_gradient.kronecker_preconditioner import deviations
from ..weights.algebra import Weights
from ..weights.rng import Keys
from .kronecker_optimizer import KroneckerOptimizer


class NoisyKFAC(KroneckerOptimizer):
    """K-FAC with gradients and curvature at weights drawn from q = N(μ, (G ⊗ A + δ)⁻¹), which is its posterior.

    See `KFAC` for the update. The first step has no curvature yet to draw with, and is taken at μ.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate.
        momentum: β.
        curvature_decay: Of the averages, per look at the curvature.
        damping: γ, beside the curvature of one example; no part of q.
        update_every: Steps from one look at the curvature to the next; at first they are closer, as in `pl.KFAC`.
        trust: By how many nats per example a step may change predictions; longer ones are shortened. None: no limit.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        num_samples: How many draws `step(closure)` averages over.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: Draws are a function of (seed, step, call) alone.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 0.1, momentum: float = 0.9, curvature_decay: float = 0.95,
        damping: float = 1e-3, update_every: int = 10, trust: float | None = 1e-2,
        prior_precision: float | Mapping[str, float] = 1.0, num_samples: int = 1, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        super().__init__(
            network, num_data=num_data, lr=lr, momentum=momentum, curvature_decay=curvature_decay, damping=damping,
            update_every=update_every, trust=trust, prior_precision=prior_precision, num_samples=num_samples,
            reduction=reduction, seed=seed,
        )  # fmt: skip

    def _deviation(self, rng: Keys) -> Weights:
        if not self.param_groups[0]["looks"]:
            return {}
        return deviations(self.roots(), rng.normal_like(self.weights()))
