"""Dropout as approximate inference (Gal & Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Dropout
from ...core.priors import Normal
from ...weights.algebra import Weights
from ...weights.rng import Keys
from ..point.map import MAP
from .dropped import MASKS, Dropped, bernoulli_mask, check_prior, check_where, rates_by_weight


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """Train with dropout, predict with dropout: the passes are draws from q.

    Under q a unit's weights are w / (1 − p) with probability 1 − p, and zero otherwise. What is climbed is the bound

        E_q[log p(D | w)] + Σ [(1 − p) log prior(w / (1 − p)) + p log prior(0)]

    with one mask for every example of a batch. For a normal prior the sum is −(1 − p) ‖m‖² / (2 scale²) with m = w / (1 − p),
    their weight decay in their parameters; m is what their networks hold, w what `torch.nn.Dropout` makes networks hold. A
    bias is not switched and has the prior's full weight, except that of a convolution, which its filter's mask switches too.

    Masks meet layers by the weights they use, so functional calls, attention's projections and tied weights count. Every number
    of every example has a coin of its own, also along positions. Of a recurrent layer the inputs are dropped, of a recurrent
    cell the inputs and the hidden state. Embeddings, norms and layers whose weights are fixed are left alone. A network's
    own dropout layers work in training and, unless where="own", not in prediction.

    Args:
        rate: p, or a dictionary from patterns of weights' or layers' names to rates; the first match wins, and a layer that
            none matches is not dropped from. Not used for where="own".
        where: "all" before every linear and recurrent layer, the first included, and after every convolution; "linear"
            before linear layers only; "convolution" after convolutions only; "own" at the network's own dropout layers
            and functions, with their own rates and the prior's full weight.
        base: How to climb.
    """

    is_point: ClassVar[bool] = True

    rate: float | Mapping[str, float] = 0.1
    where: str = "all"
    base: MAP = MAP()

    def __post_init__(self):
        check_where(self.where)
        for r in self.rate.values() if isinstance(self.rate, Mapping) else [self.rate]:
            require(isinstance(r, int | float) and 0 <= r < 1, f"rate must lie in [0, 1), got {r!r}")
        require(isinstance(self.base, MAP), f"base must be a pl.MAP, got {self.base!r}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Patterns become names, before anything runs: a compiler cannot read them."""
        base = self.base.resolved(model, num_steps)
        if self.where == "own":
            return replace(self, base=base)
        check_prior(model, "MCDropout")
        rate = rates_by_weight(model, self.rate) if isinstance(self.rate, Mapping) else self.rate
        return replace(self, base=base, rate=rate)

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's."""
        if self.where == "own":
            require(
                bool(model.network.dropouts or model.network.draws),
                'where="own" needs a network with dropout layers, and this one has none; where="all" needs none',
            )
        return self.base.init(model, params)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's step on the bound."""
        if self.where == "own":
            return self.base.step(model, state, batch, rng)
        rates = self._rates(model)
        target = Dropped(model, rates, self.where, bernoulli_mask, rng.later(MASKS))
        return self.base.step(target, state, batch, rng)

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Dropout:
        """The weights and their rates."""
        return Dropout(model, state["params"], {} if self.where == "own" else self._rates(model), self.where)

    def _rates(self, model: Any) -> dict[str, Any]:
        """By weight; `resolved` has looked up the patterns."""
        return dict(self.rate) if isinstance(self.rate, Mapping) else rates_by_weight(model, self.rate)

    @staticmethod
    def prior_from(
        *, precision: float, length_scale: float | None = None, weight_decay: float | None = None,
        num_data: int | None = None, rate: float | None = None,
    ) -> tuple[Normal, float]:  # fmt: skip
        """The prior and the normal likelihood's scale that a published (length scale, precision, weight decay) stands for.

        In the paper's terms the loss is 1/N Σ ½ (y − ŷ)² + λ ‖m‖², and λ = (1 − p) l² / (2 N τ).

        Args:
            precision: τ, of the observations.
            length_scale: l; or instead of it
            weight_decay: λ, together with
            num_data: N, and
            rate: p.
        """
        require(precision > 0, f"precision must be positive, got {precision}")
        if length_scale is None:
            if weight_decay is None or num_data is None or rate is None:
                raise ValueError("give length_scale, or weight_decay, num_data and rate")
            length_scale = (2 * num_data * precision * weight_decay / (1 - rate)) ** 0.5
        require(length_scale > 0, f"length_scale must be positive, got {length_scale}")
        return Normal(scale=1 / length_scale), precision**-0.5
