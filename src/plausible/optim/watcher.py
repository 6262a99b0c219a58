"""Hooks on the user's network that see which passes a backward pass goes through, and record those that are measured."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..core.errors import NotSupported
from .recorded_pass import Pass, RecordedPass, Recordings

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer


def watch(network: nn.Module, optimizer: BayesianOptimizer) -> None:
    """Watch every pass of the network for as long as the optimiser lives."""
    watcher = Watcher(network, optimizer)
    before = network.register_forward_pre_hook(watcher.before, with_kwargs=True)
    after = network.register_forward_hook(watcher.after, with_kwargs=True, always_call=True)
    weakref.finalize(optimizer, before.remove)
    weakref.finalize(optimizer, after.remove)


def on_gradients(optimizer: BayesianOptimizer, look: Callable[[Any, str, Tensor], None]) -> None:
    """Call `look(optimizer, name, weight)` whenever a gradient has come back to a weight, for as long as the optimiser lives."""
    alive = weakref.ref(optimizer)
    for name, weight in optimizer.weights().items():
        hook = functools.partial(_came_back, alive, look, name)
        weakref.finalize(optimizer, weight.register_post_accumulate_grad_hook(hook).remove)


def _came_back(alive: weakref.ref, look: Callable[[Any, str, Tensor], None], name: str, weight: Tensor) -> None:
    optimizer = alive()
    if optimizer is None:
        return
    with torch.no_grad():
        look(optimizer, name, weight)
    if optimizer.witness is not None and not optimizer.ledger.waiting:
        optimizer.ledger.waiting = True
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_all_came, alive))  # type: ignore[attr-defined]


def _all_came(alive: weakref.ref) -> None:
    optimizer = alive()
    if optimizer is not None:
        optimizer.ledger.waiting = False
        optimizer.witness.stand()


class Watcher:
    """The hooks of one network and optimiser. A copy of the network has a copy that sees nothing."""

    def __init__(self, network: nn.Module | None = None, optimizer: BayesianOptimizer | None = None):
        self._network = None if network is None else weakref.ref(network)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._recordings = Recordings()
        self._open: list[Pass | None] = []

    def __reduce__(self) -> Any:
        return Watcher, ()

    def before(self, network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Start to record, where the pass can be differentiated."""
        optimizer = self._owner(network)
        if optimizer is None:
            return
        current: Pass | None = None
        self._open.append(None)
        if torch.is_grad_enabled() and (optimizer.held or optimizer.ledger.inside or not optimizer.draws_weights):
            self._clear_if_gradients_were(optimizer)
            inputs, others = _inputs(network, args, kwargs)
            if optimizer.measures:
                current = RecordedPass(optimizer, self._recordings, network, inputs, others)
            else:
                current = Pass(optimizer, inputs)
            current.begin()
        self._open[-1] = current

    def after(self, network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Stop to record; what was recorded is used when a gradient comes back."""
        if self._owner(network) is None or not self._open:
            return
        current = self._open.pop()
        if current is None:
            return
        current.end()
        if output is not None:  # the pass did not raise
            current.expect_gradients(output)

    def _owner(self, network: nn.Module) -> BayesianOptimizer | None:
        if self._network is None or self._optimizer is None or self._network() is not network:
            return None
        return self._optimizer()

    @staticmethod
    def _clear_if_gradients_were(optimizer: BayesianOptimizer) -> None:
        """After `network.zero_grad()`, or a step that a GradScaler left out, nothing is known of any gradient."""
        ledger = optimizer.ledger
        known = ledger.now.examples or ledger.done.examples
        if known and not ledger.inside and all(p.grad is None for p in optimizer.weights().values()):
            ledger.clear()


def _inputs(network: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments that have examples as the library writes inputs (a tuple, or a dictionary by name), and the others."""
    if not kwargs and all(_has_examples(t) for t in args):
        return tuple(args), {}
    bound = inspect.signature(network.forward).bind(*args, **kwargs)
    given = dict(bound.arguments)
    for name, parameter in inspect.signature(network.forward).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in given:
            given.update(given.pop(name))
    inputs = {k: v for k, v in given.items() if _has_examples(v)}
    if not inputs:
        raise NotSupported(
            f"examples are counted along the first axis of the inputs, and {type(network).__name__} was given none that is "
            f"a tensor, but {', '.join(sorted({type(v).__name__ for v in given.values()})) or 'nothing'}"
        )
    return inputs, {k: v for k, v in given.items() if k not in inputs}


def _has_examples(argument: Any) -> bool:
    leaves = pytree.tree_leaves(argument)
    return bool(leaves) and all(isinstance(t, Tensor) and t.dim() > 0 for t in leaves)
