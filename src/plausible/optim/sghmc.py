"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin, 2014) as an optimiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..core.method import require
from ..inference.mcmc.sghmc import hamiltonian_
from ..weights.algebra import scale_, wide_zeros
from .chain import Chain
from .checks import number
from .optimizer import Part


class SGHMC(Chain):
    """SGD with momentum on the mean loss and the prior, with the noise that makes the weights draws of the posterior.

    v ← β v − lr (ĝ + δ/N w) + √(2 (1 − β) lr T / N) ξ,   w ← w + v,   ξ ~ N(0, I)

    Args:
        network: Whose trainable weights are drawn.
        num_data: N, the number of training examples.
        lr: Learning rate: N / T times the square of the step size of `pl.SGHMC`.
        momentum: β, which is 1 − step size × friction of `pl.SGHMC`.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight; or numbers by name pattern, of which the first counts.
        temperature: T: draws are of p(w, D)^(1/T).
        burn_in: Steps before the first draw. None drops two fifths of those that there are when the posterior is asked for.
        thin: Keep every so many-th draw.
        max_draws: How many are kept at most, spread evenly over the chain.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        seed: The noise is a function of (seed, step) alone.
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float = 1e-2, momentum: float = 0.9,
        prior_precision: float | Mapping[str, float] = 1.0, temperature: float = 1.0, burn_in: int | None = None,
        thin: int = 1, max_draws: int = 256, reduction: str = "mean", seed: int = 0,
    ):  # fmt: skip
        momentum = number("momentum", momentum)
        require(0 <= momentum < 1, f"momentum must be in [0, 1), got {momentum}")
        super().__init__(
            network, {"lr": lr, "momentum": momentum}, num_data=num_data, prior_precision=prior_precision,
            temperature=temperature, burn_in=burn_in, thin=thin, max_draws=max_draws, reduction=reduction, seed=seed,
        )  # fmt: skip

    def _update(self, parts: list[Part]) -> None:
        noise, weights = self._rng().normal_like(self.weights()), self.weights()
        for part in parts:
            group = part.group
            heat = group["temperature"]
            # p of unit variance, as in `pl.SGHMC`, stays what it is where a schedule changes lr.
            h, decay = (group["lr"] * heat / self.num_data) ** 0.5, 1.0 - group["momentum"]
            for k in part.params:
                if "momentum" not in self.state[weights[k]]:
                    self.state[weights[k]]["momentum"] = wide_zeros(weights[k])
            momentum = {k: self.state[weights[k]]["momentum"] for k in part.params}
            slope = scale_(self._slope(part), 1.0 / heat)
            hamiltonian_(part.params, momentum, slope, {k: noise[k] for k in part.params}, h, decay, 2 * decay)
        self._keep()
