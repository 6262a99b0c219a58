"""The network that an optimiser is of: without what is wrapped around it, and with weights that it did not have before."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn
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


def is_borrowed(network: nn.Module, names: Iterable[str]) -> bool:
    """Whether `torch.func` runs the network, or lends it other weights for a pass that brings the optimiser's no gradients."""
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    for name in names:
        path, _, own = name.rpartition(".")
        held = _at(network, path)._parameters.get(own)
        if held is not None and not isinstance(held, nn.Parameter):
            return True
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
