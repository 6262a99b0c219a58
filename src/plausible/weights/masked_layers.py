"""Dropout at the layers of any network, whose code need not know of it.

A mask comes before every linear map and recurrent layer, on what goes in, and after every convolution, on what comes
out. Every number of every example has a coin of its own, as `torch.nn.Dropout` tosses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .layer_calls import CONVOLUTION, LINEAR, RECURRENT, LayerCall, LayerCalls

WHERE = ("all", "linear", "convolution", "own")
BEFORE = {"all": (LINEAR, RECURRENT), "linear": (LINEAR,), "convolution": ()}
AFTER = {"all": (CONVOLUTION,), "linear": (), "convolution": (CONVOLUTION,)}

Drop = Callable[
    ..., Tensor
]  # (what is dropped from, rate) → what is left, scaled up; at own dropouts also their function


@dataclass(frozen=True)
class Site:
    """Where a mask met the network: how many units of one position it switches, and the weights that it switches."""

    units: int
    weights: tuple[str, ...]


def masking(
    weights: Mapping[str, Tensor], rates: Mapping[str, Any], where: str, drop: Drop, met: dict[str, Site] | None = None
) -> LayerCalls:
    """The context in which a pass with `weights` is dropped from.

    Args:
        weights: What the network is called with.
        rates: By weight, the rate at which its layer's inputs (of a convolution: outputs) are dropped.
        where: One of `WHERE`; "own" calls `drop` at the network's own dropouts, in eval mode too, with their own rates.
        drop: Does it.
        met: Filled with the places that a mask met, by weight.
    """
    if where == "own":
        return LayerCalls({}, LayerCall.run, dropouts=drop)
    met = {} if met is None else met

    def handle(call: LayerCall) -> Any:
        rate = rates.get(call.name)
        if rate is None or call.weight is None:
            return call.run()
        if call.kind in AFTER[where]:
            out = call.run()
            met.setdefault(call.name, Site(out.shape[call.channels], call.names))
            return drop(out, rate)
        if call.kind in BEFORE[where] and call.input is not None:
            switched = (call.name, *(n for n in call.names if n == f"{call.name}_reverse"))
            met.setdefault(call.name, Site(call.input.shape[-1], switched))
            return call.run(input=drop(call.input, rate))
        return call.run()

    return LayerCalls(weights, handle)
