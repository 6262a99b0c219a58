"""Dropout that learns its rates (Gal, Hron & Kendall, 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Dropout
from ...core.target import Batch
from ...weights.algebra import Weights
from ...weights.masked_layers import Site
from ...weights.rng import Keys
from ..point.map import MAP
from .dropped import MASKS, Dropped, check_prior, check_where, rates_by_weight

LOGIT = "logit of the rate of "  # what an unknown rate is called beside the weights, whose names have no spaces
LOWEST, HIGHEST = 1e-6, 1 - 1e-3  # of a learned rate: at 1 nothing is left to scale up, at 0 its logarithm has no slope


class Concrete(Dropped):
    """A model seen through masks that are smooth in their rates, whose logits are unknowns like the weights.

    The rates also have H(p) = −p log p − (1 − p) log(1 − p), once for every unit that a layer's mask switches.
    """

    def slope(self, params: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Weights]:
        """The bound and its gradient in weights and logits."""
        return super(Dropped, self).slope(params, batch)

    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """The bound."""
        weights, rates = _apart(params)
        value = super().objective(weights, (batch, rates), key)
        return value + entropy(rates, self.met) / self.model.temperature

    def add_remainder(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """The model's, which knows of no rates."""
        weights, _ = _apart(params)
        value, own = self.model.add_remainder(value, weights, {k: slopes[k] for k in weights})
        return value, {**slopes, **own}

    def prior_slope(self, params: Mapping[str, Tensor]) -> Weights:
        """The gradient of all but the likelihood; `slope` has been called."""

        def rest(params: Mapping[str, Tensor]) -> Tensor:
            weights, rates = _apart(params)
            change = self.prior_change(weights, rates, self.met) + entropy(rates, self.met)
            return change / self.model.temperature

        plain = self.model.prior_slope(_apart(params)[0])
        return {k: s + plain[k] if k in plain else s for k, s in torch.func.grad(rest)(dict(params)).items()}


def _apart(params: Mapping[str, Tensor]) -> tuple[Weights, Weights]:
    """Weights, and rates by weight."""
    weights = {k: v for k, v in params.items() if not k.startswith(LOGIT)}
    return weights, {k.removeprefix(LOGIT): _rate(v) for k, v in params.items() if k.startswith(LOGIT)}


def _rate(logit: Tensor) -> Tensor:
    return LOWEST + (HIGHEST - LOWEST) * logit.sigmoid()


def entropy(rates: Mapping[str, Tensor], met: Mapping[str, Site]) -> Any:
    """Σ H(p) over all units."""
    total: Any = 0.0
    for name, site in met.items():
        p = rates[name]
        total = total - site.units * (torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
    return total


@dataclass(frozen=True)
class ConcreteMask:
    """z = σ((logit p + logit u) / temperature) is close to a coin's 0 or 1, and smooth in p; 1 − z of x is kept."""

    temperature: float

    def __call__(self, keys: Keys, x: Tensor, rate: Any) -> Tensor:
        """x under a mask."""
        # Not in bfloat16; and in the rate's precision, which as a single number's would give way to a float32 tensor's.
        wide = torch.promote_types(x.dtype, torch.float32)
        u = keys.uniform(x.shape, torch.float32, x.device).to(wide)
        logit = torch.log(rate) - torch.log1p(-rate) + torch.log(u) - torch.log1p(-u)
        return x * (F.sigmoid(-logit / self.temperature).to(x.dtype) / (1 - rate))


@dataclass(frozen=True, kw_only=True)
class ConcreteDropout(Method):
    """MC dropout with a rate for every layer, found by gradients.

    The bound of `MCDropout`, with the entropy of the masks, which there is a constant:

        E_q[log p(D | w)] + Σ_layers [(1 − p) log prior(w / (1 − p)) + p log prior(0) + K H(p)]

    where K is the number of a layer's inputs (of a convolution: filters). While training, coins are relaxed to
    z = σ((logit p + logit u) / temperature), u ~ U(0, 1), so that the rates have a gradient. On the scale of all data, as
    here, the entropy has no factor 1/N: more data outweigh it, and rates fall.

    Args:
        rate: Where all rates start.
        temperature: Of the relaxed coins.
        where: At which layers, as in `MCDropout`, but not "own".
        base: How to climb, in the rates' logits too.
    """

    is_point: ClassVar[bool] = True

    rate: float = 0.1
    temperature: float = 0.1
    where: str = "all"
    base: MAP = MAP()

    @property
    def compiles(self) -> bool:
        """Inductor of torch 2.13 gave weights that differ by a tenth after 24 steps of float64, and failed on several modes."""
        return False

    def __post_init__(self):
        check_where(self.where)
        require(self.where != "own", 'where="own" has no rates to learn; take "all", "linear" or "convolution"')
        require(LOWEST < self.rate < HIGHEST, f"rate must lie in ({LOWEST:g}, {HIGHEST:g}), got {self.rate}")
        require(self.temperature > 0, f"temperature must be positive, got {self.temperature}")
        require(isinstance(self.base, MAP), f"base must be a pl.MAP, got {self.base!r}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Refuse what has no bound."""
        check_prior(model, "ConcreteDropout")
        return replace(self, base=self.base.resolved(model, num_steps))

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's state of weights, and under "logits" of all layers' rates."""
        like = next(iter(params.values()))
        rate = torch.as_tensor(self.rate, dtype=like.dtype, device=like.device)
        start = torch.logit((rate - LOWEST) / (HIGHEST - LOWEST))
        logits = {LOGIT + k: start.clone() for k in rates_by_weight(model, 0.0)}
        return {**self.base.init(model, params), "logits": self.base.init(model, logits)}

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's step in weights and logits together."""
        logits = state["logits"]
        joint = {part: {**state[part], **logits[part]} for part in logits}
        target = Concrete(model, {}, self.where, ConcreteMask(self.temperature), rng.later(MASKS))
        joint, shown = self.base.step(target, joint, batch, rng)
        parts = {part: {k: v for k, v in values.items() if k not in logits[part]} for part, values in joint.items()}
        own = {part: {k: values[k] for k in logits[part]} for part, values in joint.items()}
        return {**parts, "logits": own}, shown

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Dropout:
        """The weights and the rates that were found."""
        return Dropout(model, state["params"], _apart(state["logits"]["params"])[1], self.where)
