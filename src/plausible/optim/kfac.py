"""Kronecker-factored approximate curvature (Martens & Grosse, 2015) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..core.model import BayesianModel
from ..core.posteriors import Kronecker
from ..weights.algebra import Weights
from .kronecker_optimizer import KroneckerOptimizer


class KFAC(KroneckerOptimizer):
    """Natural gradients to the most probable weights; the posterior is the normal with the same curvature.

    m ← β m + (1 − β) ĝ,   w ← w + lr (G ⊗ A + δ + N γ)⁻¹ m / (1 − βᵗ)

    ĝ is the gradient of the log joint of all N examples. A and G are averages over the last batches of the products of a
    layer's inputs and of the examples' own gradients of its outputs: the empirical Fisher information.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate; 1 is a whole Newton step.
        momentum: β.
        curvature_decay: Of the averages, per look at the curvature.
        damping: γ, beside the curvature of one example.
        update_every: Steps from one look at the curvature to the next; at first they are closer, as in `pl.KFAC`.
        trust: By how many nats per example a step may change predictions; longer ones are shortened. None: no limit. The default
            is for deep networks and classes; in regression with little noise 1e-2 gets there in fewer steps.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: Not used.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 0.1, momentum: float = 0.9, curvature_decay: float = 0.95,
        damping: float = 1e-3, update_every: int = 10, trust: float | None = 1e-4,
        prior_precision: float | Mapping[str, float] = 1.0, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        super().__init__(
            network, num_data=num_data, lr=lr, momentum=momentum, curvature_decay=curvature_decay, damping=damping,
            update_every=update_every, trust=trust, prior_precision=prior_precision, num_samples=1, reduction=reduction,
            seed=seed,
        )  # fmt: skip

    def _posterior(self, model: BayesianModel, mean: Weights) -> Kronecker:
        answer = super()._posterior(model, mean)
        answer.linearised_by_default = True
        return answer
