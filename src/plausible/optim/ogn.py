"""Online Gauss–Newton (Osawa et al., 2019) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from .vogn import OnlineGaussNewton


class OGN(OnlineGaussNewton):
    """VOGN without draws: the gradients of single examples are taken at the mean, so a bare loop of steps will do.

    Args:
        network: Whose trainable weights are inferred.
        num_data: N, the number of training examples.
        lr: Learning rate.
        betas: β₁ and β₂, as in `VOGN`.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        damping: γ. Without draws, squares vanish where the data are fitted, and something must be left to divide by.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: Not used.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.95),
        prior_precision: float | Mapping[str, float] = 1.0, damping: float = 1e-2, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        super().__init__(
            network, num_data=num_data, lr=lr, betas=betas, prior_precision=prior_precision, damping=damping,
            tempering=1.0, augmentation_factor=1.0, reduction=reduction, num_samples=1, seed=seed,
        )  # fmt: skip
