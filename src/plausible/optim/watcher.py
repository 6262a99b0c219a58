"""Hooks on the user's network that see which passes a backward pass goes through, and record those that are measured."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..core.errors import NotSupported
from .compilers import pause, resume, skip, untraced
from .neighbours import NEIGHBOURS
from .networks import are_made_of, bare, lent, strangers
from .recorded_pass import Pass, RecordedPass, Untold
from .recordings import Recordings

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer


log = logging.getLogger("plausible")
ALIVE: weakref.WeakSet[BayesianOptimizer] = weakref.WeakSet()


class Hooks:
    """What an optimiser has hung on its network and weights, for as long as it lives and is the newest of any of them."""

    def __init__(self, optimizer: BayesianOptimizer):
        self.handles: list[Any] = []
        self.watcher: Watcher | None = None
        self.newest, self.warned = True, False
        own = {id(p) for p in optimizer.weights().values()}
        for other in list(ALIVE):
            hooks = other._hooks
            if hooks is not None and any(id(p) in own for p in other.weights().values()):
                hooks.newest = False
                hooks.remove()
        ALIVE.add(optimizer)
        measures = optimizer.witness is not None and not optimizer.remembers  # at some steps, if not at this one
        if measures or optimizer.reduction == "sum":
            self._watch(bare(optimizer.network) if measures else optimizer.network, optimizer)
        if measures or optimizer.reduction == "sum" or optimizer.draws_weights:
            self._see_gradients(optimizer)
        if optimizer.random:
            self.handles += NEIGHBOURS.hook(optimizer)
        weakref.finalize(optimizer, self.remove)

    def _watch(self, network: nn.Module, optimizer: BayesianOptimizer) -> None:
        skip(Watcher.before, Watcher.after)
        watcher = self.watcher = Watcher(network, optimizer)
        self.handles += [
            network.register_forward_pre_hook(watcher.before, with_kwargs=True),
            network.register_forward_hook(watcher.after, with_kwargs=True, always_call=True),
        ]

    def _see_gradients(self, optimizer: BayesianOptimizer) -> None:
        alive = weakref.ref(optimizer)
        for name, weight in optimizer.weights().items():
            hook = functools.partial(_came_back, alive, name)
            self.handles.append(weight.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        """Leave the network as it was."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def require_newest(self) -> None:
        """Raise where another optimiser has taken over."""
        if not self.newest:
            raise RuntimeError(
                "another optimiser of these weights was made after this one and has taken over; step that one, or make this "
                "one anew"
            )


def _came_back(alive: weakref.ref, name: str, weight: Tensor) -> None:
    optimizer = alive()
    if optimizer is None:
        return
    ledger = optimizer.ledger
    astray = optimizer.draws_weights and not (optimizer.held or ledger.inside)
    ledger.gradients.came(name, weight, astray)
    if not optimizer.remembers:
        return
    with torch.no_grad():
        optimizer.gradient_came(name, weight)
    if optimizer.witness is not None and not ledger.waiting:
        ledger.waiting = True
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
        self._compilers: list[Any] = []
        self._said: set[str] = set()

    def __reduce__(self) -> Any:
        return Watcher, ()

    @untraced
    def before(self, network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Start to record, where the pass can be differentiated."""
        compiler = pause()
        recorded = False
        try:
            recorded = self._begin(network, args, kwargs)
        finally:
            if recorded:
                self._compilers.append(compiler)  # a recorded pass is run as it is written
            else:
                resume(compiler)

    @untraced
    def after(self, network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Stop to record; what was recorded is used when a gradient comes back."""
        compiler = pause()
        try:
            if self._owner(network) is None or not self._open:
                return
            current = self._open.pop()
            if current is None:
                return
            if isinstance(current, RecordedPass):
                compiler = self._compilers.pop()
            current.end()
            if output is not None:  # the pass did not raise
                self._expect(current, output)
        finally:
            resume(compiler)

    def abandon(self) -> None:
        """End passes that were broken off by Ctrl-C and the like, after which torch runs no hooks."""
        while self._open:
            current = self._open.pop()
            if isinstance(current, RecordedPass):
                current.end()
                resume(self._compilers.pop())

    def _begin(self, network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
        optimizer = self._owner(network)
        if optimizer is None:
            return False
        self._open.append(None)
        if not torch.is_grad_enabled() or not (
            optimizer.held or optimizer.ledger.inside or not optimizer.draws_weights
        ):
            return False
        if torch._C._functorch.maybe_current_level() is not None:
            self._open[-1] = Untold(optimizer, "inside torch.func.vmap or another transform")
            return False
        weights = optimizer.weights()
        if put := lent(bare(network), weights):
            if len(put) == len(weights) and not are_made_of(put.values(), weights):
                return False
            if optimizer.measures:
                self._open[-1] = Untold(optimizer, "with what torch.func.functional_call put in the place of weights")
                return False
        self._clear_if_gradients_were(optimizer)
        inputs, others = _inputs(network, args, kwargs)
        current = (
            RecordedPass(optimizer, self._recordings, network, inputs, others)
            if optimizer.measures
            else Pass(optimizer, inputs)
        )
        current.begin()
        self._open[-1] = current
        return isinstance(current, RecordedPass)

    def _expect(self, current: Pass, output: Any) -> None:
        try:
            current.expect_gradients(output)
        except NotSupported as error:
            strange = strangers(current.optimizer)
            if not strange:
                raise
            raise NotSupported(
                f"{', '.join(strange)}: the network has other weights than when the optimiser was made; make another "
                f"{type(current.optimizer).__name__} of the network as it is now"
            ) from error
        if current.examples > current.optimizer.num_data:
            self._say_once(
                "a batch has %s examples, and num_data says that there are %g in all: it is the number of training examples, "
                "len(loader.dataset), not of batches",
                current.examples, current.optimizer.num_data,
            )  # fmt: skip
        if current.strange_rows is not None:
            self._say_once(
                "a summed loss is divided by the number of examples, which is counted along the first axis of the inputs: %s "
                "here, where the network returned %s rows; put examples in front, or take the mean of the losses",
                current.examples, current.strange_rows,
            )  # fmt: skip

    def _say_once(self, message: str, *numbers: float) -> None:
        if message not in self._said:
            self._said.add(message)
            log.warning(message, *numbers)

    def _owner(self, network: nn.Module) -> BayesianOptimizer | None:
        if self._network is None or self._optimizer is None or self._network() is not network:
            return None
        return self._optimizer()

    @staticmethod
    def _clear_if_gradients_were(optimizer: BayesianOptimizer) -> None:
        """After `network.zero_grad()`, or a step that a GradScaler left out, nothing is known of any gradient."""
        ledger = optimizer.ledger
        if torch._C._current_graph_task_id() != -1:  # a checkpoint runs it again, and gradients are on their way
            return
        known = ledger.now.examples or (ledger.done.examples and not ledger.inside)
        if not known or not ledger.gradients.were_cleared(optimizer.weights()):
            return
        if ledger.inside:  # those of earlier draws are set aside
            ledger.forget_draw()
        else:
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
