"""Stochastic gradient Langevin dynamics (Welling & Teh, 2011) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..inference.mcmc.sgld import langevin_
from .chain import Chain
from .optimizer import Part


class SGLD(Chain):
    """SGD on the mean loss and the prior, with the noise that makes the weights draws of the posterior.

    w ← w − lr (ĝ + δ/N w) + √(2 lr T / N) ξ,   ξ ~ N(0, I)

    Args:
        network: Whose trainable weights are drawn.
        num_data: N, the number of training examples.
        lr: Learning rate: N / T times the step size of `pl.SGLD`.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        temperature: T: draws are of p(w, D)^(1/T).
        burn_in: Steps before the first draw. None drops two fifths of those that there are when the posterior is asked for.
        thin: Keep every so many-th draw.
        max_draws: How many are kept at most, spread evenly over the chain.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: The noise is a function of (seed, step) alone.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 0.1,
        prior_precision: float | Mapping[str, float] = 1.0, temperature: float = 1.0, burn_in: int | None = None,
        thin: int = 1, max_draws: int = 256, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        super().__init__(
            network, {"lr": lr}, num_data=num_data, prior_precision=prior_precision, temperature=temperature,
            burn_in=burn_in, thin=thin, max_draws=max_draws, reduction=reduction, seed=seed,
        )  # fmt: skip

    def _update(self, parts: list[Part]) -> None:
        noise = self._rng().normal_like(self.weights())
        for part in parts:
            rate = part.group["lr"] / self.num_data
            own = {k: noise[k] for k in part.params}
            langevin_(part.params, self._slope(part), own, rate, 2 * rate * part.group["temperature"])
        self._keep()
