"""The bound that dropout climbs: the expected log likelihood under masks, less the divergence from the prior.

A unit's weights are w / (1 − p) with probability 1 − p, else zero: q has two needle-thin peaks, at m = w / (1 − p) and at 0.
With thinness that nothing depends on, for every unit (Gal & Ghahramani, 2016, appendix)

    −KL(q ‖ prior) = (1 − p) log prior(m) + p log prior(0) + H(p) + constant,

which for a normal prior is −(1 − p) ‖m‖² / (2 scale²) + H(p): their term, in their parameters m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...core.target import Batch, Target
from ...weights.algebra import Weights
from ...weights.masked_layers import WHERE, Site, masking
from ...weights.rng import Keys

MASKS = 0x6D61736B  # the call of a step's keys from which masks are drawn
Mask = Callable[[Keys, Tensor, Any], Tensor]  # (where random numbers come from, what is dropped from, rate)


def bernoulli_mask(keys: Keys, x: Tensor, rate: Any) -> Tensor:
    """x with every number zero at that rate, the rest scaled up."""
    kept = keys.uniform(x.shape, torch.float32, x.device) >= rate
    return x * (kept.to(x.dtype) / (1 - rate))


class Dropped(Target):
    """A model seen through masks.

    Args:
        model: What is dropped from, as `fit` has bound it.
        rates: By weight; numbers, or tensors where runs differ in them.
        where: At which layers.
        mask: How a mask is drawn and applied.
        keys: Where the step's masks come from.
    """

    def __init__(self, model: BayesianModel, rates: Mapping[str, Any], where: str, mask: Mask, keys: Keys):
        self.model, self.rates, self.where, self.mask = model, dict(rates), where, mask
        self.num_data, self.num_steps, self.steps_per_epoch = model.num_data, model.num_steps, model.steps_per_epoch
        self.inline, self.rng = model.inline, keys
        self.met: dict[str, Site] = {}  # by the last pass; the same in every one

    @property
    def start(self) -> Weights:
        """The model's."""
        return self.model.start

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """The model's."""
        return self.model.constrain(params)

    @property
    def needs_key(self) -> bool:
        """Masks are drawn."""
        return True

    @property
    def gradient_scale(self) -> float:
        """The model's."""
        return self.model.gradient_scale

    def slope(self, params: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Weights]:
        """The bound and its gradient."""
        return super().slope(params, (batch, self.rates))  # rates go where `vmap` sees them

    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """The model's objective in one pass under masks, and what the prior differs by."""
        own, rates = batch
        met: dict[str, Site] = {}

        def around(weights: Weights, keys: Keys | None) -> Any:
            assert keys is not None
            return masking(weights, rates, self.where, lambda x, rate: self.mask(keys, x, rate), met)

        value = self.model.bound(around=around).objective(params, own, key)
        if not met:
            raise ValueError(
                f"where={self.where!r} meets no layer of this network with an unknown weight and a rate; its weights are "
                f"{', '.join(self.model.weight_names[:6])}"
            )
        self.met = met
        return value + self.prior_change(params, rates, met) / self.model.temperature

    def prior_change(self, params: Mapping[str, Tensor], rates: Mapping[str, Any], met: Mapping[str, Site]) -> Tensor:
        """(1 − p) log prior(w / (1 − p)) + p log prior(0) − log prior(w), over all weights that masks switch."""
        switched = {n: rates[name] for name, site in met.items() for n in site.weights if n in params}
        natural = self.model.belief.hyperparameters(params)
        total: Any = 0.0
        for group in self.model.groups:
            for name in (n for n in group.names if n in switched):
                density, w, p = group.density(name, natural), params[name], switched[name]
                there, gone = density.log_prob(w / (1 - p)).sum(), density.log_prob(torch.zeros_like(w)).sum()
                total = total + (1 - p) * there + p * gone - density.log_prob(w).sum()
        return total

    def add_remainder(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """The model's."""
        return self.model.add_remainder(value, params, slopes)

    def prior_slope(self, params: Mapping[str, Tensor]) -> Weights:
        """The gradient of all but the likelihood; `slope` has been called."""
        plain = self.model.prior_slope(params)
        change = torch.func.grad(lambda p: self.prior_change(p, self.rates, self.met) / self.model.temperature)
        return {k: plain[k] + s for k, s in change(dict(params)).items()}


def check_where(where: str) -> None:
    """Raise unless it is one of the places."""
    if where not in WHERE:
        raise ValueError(f"where must be one of {', '.join(WHERE)}, got {where!r}")


def check_prior(model: BayesianModel, method: str) -> None:
    """Raise for a prior whose expectation under masks has no formula here."""
    if any(g.joint for g in model.groups):
        raise NotSupported(
            f"{method} has no formula for the divergence from a posterior used as a prior; use one of pl.priors, or "
            "pl.BayesByBackprop"
        )


def rates_by_weight(model: BayesianModel, rate: Any) -> dict[str, Any]:
    """The rate of every matrix or kernel among the unknowns, by patterns of its or its layer's name where there are any."""
    names = [k for k in model.weight_names if model.start[k].dim() >= 2]
    if not isinstance(rate, Mapping):
        return dict.fromkeys(names, rate)
    layers = {k: k.rpartition(".")[0] for k in names}
    rates: dict[str, float] = {}
    for pattern, value in rate.items():
        found = [k for k in names if fnmatchcase(k, pattern) or fnmatchcase(layers[k], pattern)]
        if not found:
            raise ValueError(f"rate pattern {pattern!r} matches no layer; there are {', '.join(layers.values())}")
        rates.update({k: value for k in found if k not in rates})
    return {k: r for k, r in rates.items() if r > 0}
