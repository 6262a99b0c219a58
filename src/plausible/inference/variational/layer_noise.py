"""Which weights are drawn through their layer's outputs, and the pass in which they are.

A weight that one linear map or convolution uses once in a pass can be: its layer runs with the mean, and noise is added to
the output for every example by itself. Any other weight (of a norm, an embedding, a recurrent cell; a tied or reused
one, whose uses must see one draw; one that the network computes with before it meets data) is drawn as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...core.target import Batch
from ...weights.algebra import Weights
from ...weights.layer_calls import LayerCall, LayerCalls
from ...weights.network import Network
from ...weights.rng import Keys, forked
from .flipout import flipped_noise
from .local_reparameterisation import local_noise

LOCAL, FLIPOUT = "local", "flipout"
Plan = dict[str, str]  # by weight: which noise its layer gets. What is not in it is drawn as a weight.

WATCHED = 0x77617463  # the stream of a watching pass, if the network draws from the global generator
_plans: WeakKeyDictionary[Network, dict[Any, Plan]] = WeakKeyDictionary()


def make_plan(model: BayesianModel, weights: Mapping[str, Tensor], batch: Batch, key: Tensor, estimator: str) -> Plan:
    """Watch one pass of the network, once for each way in which it is run."""
    if estimator == "weights":
        return {}
    examples = pytree.tree_leaves(batch[0])[0].shape[0]
    if (
        torch.compiler.is_compiling()
    ):  # a pass that nothing depends on costs nothing then, and what is kept may not change
        return _watch(model, weights, batch, key, estimator, examples)
    known = _plans.setdefault(model.network, {})
    axes = tuple(leaf.dim() for leaf in pytree.tree_leaves(batch[0]))
    # Models of other priors share a network (`with_prior`), and may make its weights of other unknowns.
    way = (estimator, examples, axes, model.training, tuple(model.weight_names), frozenset(model.belief.non_centred))
    if way not in known:
        known[way] = _watch(model, weights, batch, key, estimator, examples)
    return known[way]


def _watch(
    model: BayesianModel, weights: Mapping[str, Tensor], batch: Batch, key: Tensor, estimator: str, examples: int
) -> Plan:
    uses: dict[str, int] = {}
    found: list[tuple[tuple[str, ...], str]] = []

    def around(given: Weights, rng: Keys | None) -> AbstractContextManager[Any]:
        # A weight that the model makes of other unknowns is not one of q's own.
        own = {k: w for k, w in given.items() if w is weights[k]}

        def watch(call: LayerCall) -> Any:
            for k in call.names:
                uses[k] = uses.get(k, 0) + 1
            way = _way(call, own, estimator, examples)
            if way is not None:
                found.append((call.names, way))
            return call.run()

        return LayerCalls(given, watch)

    # The pass leaves no trace: what it writes and draws would otherwise depend on where a resumed run begins.
    buffers = None if model.buffers is None else {k: b.clone() for k, b in model.buffers.items()}
    devices = [next(iter(weights.values())).device]
    alone = forked(WATCHED, devices=devices) if model.network.draws else nullcontext()
    with torch.no_grad(), alone:
        model.bound(around=around, buffers=buffers).outputs(weights, batch[0], key)
    return {k: way for names, way in found if uses[names[0]] == 1 for k in names if uses[k] == 1}


def _way(call: LayerCall, own: Mapping[str, Tensor], estimator: str, examples: int) -> str | None:
    """How the outputs of a use can be drawn, if they can."""
    if call.kind not in ("linear", "convolution") or call.weight is not own.get(call.name):
        return None
    if call.bias is not None and len(call.names) > 1 and call.bias is not own.get(call.names[1]):
        return None
    x = call.input
    assert x is not None and call.weight is not None
    if x.dim() < 2 or x.shape[0] != examples or call.kind == "convolution" and x.dim() != call.weight.dim():
        return None
    # Where a weight meets several positions of an example, their outputs depend on one draw.
    return LOCAL if estimator == LOCAL and call.kind == "linear" and x.dim() == 2 else FLIPOUT


def noisy_layers(
    plan: Plan, scales: Mapping[str, Tensor], shifts: Mapping[str, Tensor]
) -> Callable[[Weights, Keys | None], AbstractContextManager[Any]]:
    """The context of a pass whose weights are means where the plan has them, and drawn where it has not.

    Args:
        plan: What `make_plan` gives.
        scales: σ of the weights whose outputs are drawn.
        shifts: σ ε of the weights whose layers flip their signs.
    """

    def around(weights: Weights, rng: Keys | None) -> AbstractContextManager[Any]:
        assert rng is not None
        left = dict(plan)

        def handle(call: LayerCall) -> Any:
            way = left.pop(call.name, None)
            if way is None or call.weight is not weights[call.name]:
                raise NotSupported(
                    f"{call.name} was used once by one layer when the network was first run, and otherwise now; with "
                    'estimator="weights" it may be used in any way'
                )
            bias = call.names[1] if len(call.names) > 1 else None
            if bias is not None:
                left.pop(bias)
            make, size = (local_noise, scales) if way == LOCAL else (flipped_noise, shifts)
            noise = make(call, size[call.name], None if bias is None else size[bias], rng)
            out = call.run()
            return out + noise.to(out.dtype)

        return LayerCalls({k: weights[k] for k in plan}, handle)

    return around
