"""The user's network as it is at one pass, as a function of its weights and of the inputs that have examples."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..core.errors import NotSupported


def apart(network: nn.Module, names: Collection[str], others: Mapping[str, Any]) -> nn.Module:
    """A copy that shares all parameters and buffers with the network, is told the other arguments and returns one tensor.

    What else modules hold is copied as it is now. In the copy the weights of these names are trainable.
    """
    shared: dict[int, Any] = {id(b): b for b in network.buffers()}
    for name, p in network.named_parameters():
        shared[id(p)] = nn.Parameter(p.detach(), requires_grad=name in names)
    # What a hook made of weights in the last pass, as the old weight norm does, can only be copied without its graph.
    made = {id(t): t.detach() for m in network.modules() for t in vars(m).values() if _is_made(t)}
    own = copy.deepcopy(network, {**shared, **made})
    own.forward = functools.partial(_told, own.forward, dict(others))  # type: ignore[method-assign]
    return own


class Apart:
    """Such a copy, to be differentiated in its weights example by example; what it writes is forgotten."""

    def __init__(self, network: nn.Module, names: Collection[str], others: Mapping[str, Any]):
        self.module = apart(network, names, others)

    def outputs(self, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None) -> Tensor:
        """Of inputs given as a model's are."""
        state = {**params, **{k: b.clone() for k, b in self.module.named_buffers()}}
        if isinstance(inputs, Mapping):
            return functional_call(self.module, state, (), dict(inputs))
        return functional_call(self.module, state, inputs if isinstance(inputs, tuple) else (inputs,))


def told_outputs(output: Any) -> list[Tensor]:
    """The tensors of an output that a loss may be of."""
    if hasattr(output, "logits"):
        return [output.logits]
    return [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]


def joined(outputs: list[Tensor]) -> Tensor:
    """As one tensor, a row for every example."""
    if len(outputs) == 1:
        return outputs[0]
    rows = {tuple(t.shape[:1]) for t in outputs}
    if len(rows) != 1 or () in rows:
        shapes = ", ".join(str(tuple(t.shape)) for t in outputs) or "none"
        raise NotSupported(
            "of a network that returns several tensors, all must have one row for every example, since single examples' "
            f"gradients are taken; the shapes are {shapes}. pl.optim.IVON takes any"
        )
    return torch.cat([t.reshape(len(t), -1) for t in outputs], 1)


def _told(forward: Callable[..., Any], others: Mapping[str, Any], *args: Any, **kwargs: Any) -> Tensor:
    return joined(told_outputs(forward(*args, **kwargs, **others)))


def _is_made(attribute: Any) -> bool:
    return isinstance(attribute, Tensor) and not attribute.is_leaf
