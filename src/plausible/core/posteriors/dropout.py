"""Weights whose units are switched off at random: what MC dropout and concrete dropout learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ...weights import coins, tree
from ...weights.algebra import Weights
from ...weights.layer_calls import LayerCalls
from ...weights.masked_layers import AFTER, BEFORE, WHERE, Drop, masking
from ...weights.network import CONVOLUTIONS
from ...weights.rng import Keys
from ..errors import NotSupported
from ..target import Target
from .delta import Delta
from .posterior import Posterior

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
UNMASKED = (nn.Embedding, nn.EmbeddingBag)  # no mask meets them


def dropped(x: Tensor, rate: float, by: Callable[..., Tensor] = F.dropout) -> Tensor:
    """Zero a share of x and scale up the rest, by the global generator, which is the fastest."""
    if by is F.dropout and x.device.type == "cpu" and 0 < rate < 1:
        return coins.drop(x, rate)
    return by(x, rate, True)


class Dropout(Posterior):
    """Every unit that a mask meets is there with probability 1 − rate, and then 1 / (1 − rate) times as strong.

    `predict` draws a mask anew for every pass and example, at the places that `where` means; the layers before the first of them
    run once. `sample` draws whole weights: linear layers without some of their inputs, convolutions without some filters.

    Args:
        model: Whose unknowns they are.
        params: The weights when nothing is dropped, which are their mean.
        rates: By weight, how often an input of its layer (a filter of its convolution) is dropped; what is missing never is.
        where: As in `MCDropout`; "own" is at the network's own dropout layers, with their own rates.
    """

    def __init__(self, model: Target, params: Weights, rates: Mapping[str, Tensor | float], where: str = "all"):
        if where not in WHERE:
            raise ValueError(f"where must be one of {', '.join(WHERE)}, got {where!r}")
        like = next(iter(params.values()))
        self.model, self.params, self.where = model, params, where
        self.rates: Weights = {k: torch.as_tensor(r, dtype=like.dtype, device=like.device) for k, r in rates.items()}
        self._numbers = {k: float(r) for k, r in self.rates.items()}
        for k, r in self._numbers.items():
            if k not in params or not 0 <= r < 1:
                raise ValueError(f"a rate lies in [0, 1) and is of one of the weights, got {r} for {k!r}")

    @property
    def tensors(self) -> dict[str, Any]:
        """The weights, the rates, and which of the places it is, as a number."""
        place = torch.tensor(WHERE.index(self.where), device=next(iter(self.params.values())).device)
        return {"params": self.params, "where": place, **({"rates": self.rates} if self.rates else {})}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["params"], tensors.get("rates", {}), WHERE[int(tensors["where"])])

    @property
    def mean(self) -> Weights:
        """The weights when nothing is dropped."""
        return self.params

    def weight_average(self) -> Delta:
        """The network without masks, as dropout is commonly used in testing: one pass, no spread."""
        point = Delta(self.model, self.params)
        statistics = self.statistics
        point.bank = None if statistics is None else {k: v.unsqueeze(0) for k, v in statistics.items()}
        return point

    @property
    def statistics(self) -> Weights | None:
        """Buffers to run with: what the run wrote, and norm statistics gathered under masks."""
        written = {} if self.bank is None else tree.unstack(self.bank, 0)
        return {**written, **(self.mean_bank or {})} or None

    def representative(self) -> Weights:
        """The weights when nothing is dropped."""
        return self.params

    def around(self, drop: Drop = dropped) -> Callable[[Weights, Keys | None], LayerCalls]:
        """What a model binds as `around` so that its passes are dropped from."""
        rates = {k: r for k, r in self._numbers.items() if r > 0}
        return lambda weights, keys: masking(weights, rates, self.where, drop)

    # --- as a distribution of weights ---

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """Draws number `indices`: all that a unit's mask multiplies is zero or 1 / (1 − rate) times its mean."""
        axes = self._switched_axes()

        def one(key: Tensor) -> Weights:
            rng, drawn = Keys(key, key[0] * 0), dict(self.params)
            for name, rate in self.rates.items():
                places = axes.get(name, {})
                if not places:
                    continue
                kept = rng.uniform((self.params[name].shape[places[name]],), torch.float32) >= rate
                for k, axis in places.items():
                    w = self.params[k]
                    mask = (kept.to(w.dtype) / (1 - rate)).reshape([-1 if a == axis else 1 for a in range(w.dim())])
                    drawn[k] = w * mask
            return drawn

        return torch.vmap(one)(self._keys(indices, seed))

    def _switched_axes(self) -> dict[str, dict[str, int]]:
        """By weight with a rate: which axis of which tensors its mask multiplies."""
        network = getattr(self.model, "network", None)
        if self.where == "own" or network is None or network.tied:
            raise _no_weights("dropout layers, or tied weights,")
        modules = {k: m for k, m in network.home.named_modules() if type(m) in (nn.Linear, *CONVOLUTIONS, *UNMASKED)}
        axes: dict[str, dict[str, int]] = {}
        for name in self.rates:
            layer, _, leaf = name.rpartition(".")
            module = modules.get(layer)
            if isinstance(module, UNMASKED):
                continue
            if module is None or leaf != "weight" or (isinstance(module, TRANSPOSED) and module.groups != 1):
                raise _no_weights(name)
            if isinstance(module, nn.Linear):
                axes[name] = {name: 1} if BEFORE[self.where] else {}
            elif AFTER[self.where]:
                bias = {f"{layer}.bias": 0} if f"{layer}.bias" in self.params else {}
                axes[name] = {name: 1 if isinstance(module, TRANSPOSED) else 0, **bias}
        return axes


def _no_weights(what: str) -> NotSupported:
    return NotSupported(
        f"masks of {what} are no masks of weights, so there are no draws of weights; .predict draws masks in every pass, and "
        ".weight_average() has the weights"
    )
