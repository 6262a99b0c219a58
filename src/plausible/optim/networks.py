"""The network that an optimiser is of: without what is wrapped around it, and with weights that it did not have before."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

log = logging.getLogger("plausible")
EVERY = 10  # steps between two walks through the network


def bare(network: nn.Module) -> nn.Module:
    """What `torch.compile`, `DataParallel` or `DistributedDataParallel` was given: its names are the user's."""
    while True:
        if "_orig_mod" in network._modules:
            network = network._modules["_orig_mod"]  # type: ignore[assignment]
        elif isinstance(network, nn.DataParallel | DistributedDataParallel):
            network = network.module
        else:
            return network


def lent(network: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """What `torch.func.functional_call` has put in the place of weights for this pass."""
    found: dict[str, Tensor] = {}
    for name in names:
        path, _, own = name.rpartition(".")
        held = _at(network, path)._parameters.get(own)
        if held is not None and not isinstance(held, nn.Parameter):
            found[name] = held
    return found


def are_made_of(tensors: Iterable[Tensor], weights: Mapping[str, Tensor]) -> bool:
    """Whether gradients of any of the tensors go on to the weights."""
    own = {id(p) for p in weights.values()}
    nodes: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if id(getattr(node, "variable", None)) in own:
            return True
        further = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= further
        nodes += further
    return False


def _at(network: nn.Module, path: str) -> nn.Module:
    for name in path.split(".") if path else ():
        network = network._modules.get(name) or nn.Module()  # which holds nothing: it has been replaced since
    return network


def strangers(optimizer: BayesianOptimizer) -> dict[str, nn.Parameter]:
    """The network's trainable weights that are none of the optimiser's."""
    own = {id(p) for p in optimizer.weights().values()}
    return {k: p for k, p in bare(optimizer.network).named_parameters() if p.requires_grad and id(p) not in own}


def warn_of_strangers(optimizer: BayesianOptimizer) -> bool:
    """Say, every few steps, which weights have a gradient and are none of the optimiser's. Whether anything was said."""
    if optimizer.param_groups[0]["step"] % EVERY:
        return False
    strange = [k for k, p in strangers(optimizer).items() if p.grad is not None]
    if strange:
        log.warning(
            "%s: gradients come to weights that were frozen, or were not there, when the optimiser was made, and are not "
            "trained; make another %s of the network as it is now",
            ", ".join(strange), type(optimizer).__name__,
        )  # fmt: skip
    return bool(strange)
