"""One forward pass of the user's network, and what its backward pass tells of single examples.

The curvature engine makes a plan of the network on a few examples (see `curvature/tracing.py`); the user's own pass then
runs with its recorder on, and hooks take the gradients that the user's own `backward` brings to every use of a weight.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from ..core import batch as batches
from ..core.errors import NotSupported
from ..curvature.eager import without_advice
from ..curvature.passes import Plan, Traced
from ..curvature.recording import Recorder
from .apart import Apart, joined, told_outputs
from .recordings import Recordings

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

log = logging.getLogger("plausible")


class Pass:
    """A pass whose examples are counted when a gradient comes back through it."""

    def __init__(self, optimizer: BayesianOptimizer, inputs: Any):
        self.optimizer, self.inputs = optimizer, inputs
        self.examples = batches.length(inputs)
        if not self.examples:
            raise ValueError(
                "the batch is empty, so there is nothing to learn from; skip it, or let the loader drop it"
            )
        self.counted = self.by_hand = False
        self.strange_rows: int | None = None  # of an output, which can hardly be the examples or parts of them
        self.asked: list[Any] = []  # hooks of the weights, where some gradients alone are asked for

    def begin(self) -> None:
        """Before the network runs."""

    def end(self) -> None:
        """After it ran, or raised."""

    def expect_gradients(self, output: Any) -> None:
        """Hook every output that can be differentiated."""
        self._require_rows(output)
        for t in pytree.tree_leaves(output):
            if isinstance(t, Tensor) and t.requires_grad:
                t.register_hook(self._reached)

    def _require_rows(self, output: Any) -> None:
        """Raise where what was counted were no examples: channels of images in a list, or entries of one without company."""
        given = list(self.inputs.values()) if isinstance(self.inputs, Mapping) else list(self.inputs)
        told = [len(out) if out.dim() else 1 for out in told_outputs(output)]
        if all(rows % self.examples for rows in told):
            self.strange_rows = next((r for r, out in zip(told, told_outputs(output), strict=True) if out.dim()), None)
        for rows, out in zip(told, told_outputs(output), strict=True):
            listed = any(isinstance(g, tuple | list) and len(g) == rows for g in given)
            bare = out.dim() < 2 and all(
                isinstance(g, Tensor) and g.dim() == 1 and g.is_floating_point() for g in given
            )
            if rows != self.examples and (listed or bare):
                raise ValueError(
                    f"examples are counted along the first axis of the inputs, here {self.examples}, and the network returned "
                    f"{rows}; give it one tensor with examples in front, such as torch.stack(images) or x.unsqueeze(0)"
                )

    def _reached(self, gradient: Tensor) -> None:
        if self.counted or self.asked:
            return
        weights = [w for w in self.optimizer.weights().values() if w.requires_grad]
        # What makes a graph may bring gradients later, through the graph.
        wanted = ALL if torch.is_grad_enabled() else _wanted(weights)
        self.by_hand = wanted == BY_HAND
        if wanted == ALL:
            self._count(gradient)
            return
        self.asked = [w.register_hook(self._count) for w in weights]
        torch.autograd.Variable._execution_engine.queue_callback(self._ask_no_more)  # type: ignore[attr-defined]

    def _count(self, gradient: Tensor) -> None:
        if not self.counted:
            self.counted = True
            with self.optimizer.ledger.noting(self.by_hand):
                self.optimizer.ledger.now.examples += self.examples

    def _ask_no_more(self) -> None:
        for handle in self.asked:
            handle.remove()
        self.asked = []


class Untold(Pass):
    """A pass whose examples cannot be told, which may be made as long as no gradient comes back through it."""

    def __init__(self, optimizer: BayesianOptimizer, run: str):
        self.optimizer, self.run, self.examples, self.counted, self.by_hand = optimizer, run, 0, False, False
        self.strange_rows, self.asked = None, []

    def expect_gradients(self, output: Any) -> None:
        """Hook what would bring one."""
        for t in pytree.tree_leaves(output):
            while isinstance(t, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(t):
                t = torch._C._functorch.get_unwrapped(t)
            if isinstance(t, Tensor) and t.requires_grad:
                t.register_hook(self._reached)

    def _count(self, gradient: Tensor) -> None:
        if not gradient.any():  # as behind a sign
            return
        raise NotSupported(
            f"a gradient has come back through a pass that was run {self.run}, whose examples are neither counted nor told "
            "apart; run network(inputs) itself"
        )


class RecordedPass(Pass):
    """A pass whose uses of weights are recorded, for `optimizer.measure`."""

    def __init__(
        self, optimizer: BayesianOptimizer, recordings: Recordings, network: nn.Module, inputs: Any, others: Any
    ):
        super().__init__(optimizer, inputs)
        self.weights, self.recordings = optimizer.weights(), recordings
        self.plan, self.alone = recordings.plan(network, tuple(self.weights), inputs, others)
        # Made when it is needed, and before the pass, which may change what modules hold.
        self._apart = functools.partial(Apart, network, tuple(self.weights), others)
        self.model = self._apart() if self.plan.fallback else None
        self.others = others
        wanted = {number: i for i, number in enumerate(self.plan.numbers)}
        own = {id(w) for w in self.weights.values()}
        fixed = [p for p in network.parameters() if id(p) not in own]
        constants = [*fixed, *network.buffers()]
        self.recorder = Recorder(self.weights, constants, functools.partial(self._tap, wanted), self.plan.opaque)
        self.slopes: list[Any] = [None] * len(self.plan.calls)
        self.shapes: list[Any] = [None] * len(self.plan.calls)
        self.seen: set[str] = set()  # weights that need not be looked at again
        self.columns: list[Tensor | None] = []  # the gradients of the network's outputs
        self.like: list[Tensor] = []  # tensors of their shapes, that take no room
        self.begun = self.finished = False
        self.traced: Traced | None = None

    def begin(self) -> None:
        """Record from here."""
        self.recorder.__enter__()

    def end(self) -> None:
        """Record no longer."""
        self.recorder.__exit__(None, None, None)

    def _tap(self, wanted: dict[int, int], number: int, out: Tensor) -> bool | None:
        place = wanted.get(number)
        if place is None:
            return None
        if not torch.is_grad_enabled():
            raise NotSupported(
                "a weight is used where gradients are off, as activation checkpointing does, so single examples have none; "
                "pl.optim.IVON needs none"
            )
        self.shapes[place] = out.dtype, out.device, out.shape
        if not out.requires_grad:  # of weights that were frozen meanwhile
            return True
        # On the tensor as it is now: it may be written into later.
        on_gradient(out, functools.partial(self._arrived, place))
        return True

    def expect_gradients(self, output: Any) -> None:
        """Compare the pass with the plan, then wait."""
        recorder = self.recorder
        if not self.plan.followed_by(recorder.course(self.plan.numbers), self.examples, self.weights):
            self._go_one_by_one()
        calls = [recorder.calls[n] for n in self.plan.numbers]
        for place, out in enumerate(told_outputs(output)):
            self.columns.append(None)
            self.like.append(torch.zeros((), dtype=out.dtype, device=out.device).expand(out.shape))
            if out.requires_grad:
                self._expect_at(out, place)
        given = [pytree.tree_map_only(Tensor, torch.detach, recorder.inputs[n]) for n in self.plan.numbers]
        params = {k: p.detach() for k, p in self.weights.items()}
        self.traced = Traced(
            self.model, params, self.inputs, None, tuple(self.weights), self.plan, _count(self.examples), calls,  # type: ignore[arg-type]
            given, 0, functools.partial(_with_one_column, self.slopes),
        )  # fmt: skip
        self.recorder = None  # type: ignore[assignment] # which holds on to what the pass computed

    def _go_one_by_one(self) -> None:
        """Leave the plan, which this pass did not follow, where that is for the numbers it was told."""
        numbers = [k for k, v in self.others.items() if isinstance(v, int | float) and not isinstance(v, bool)]
        another = "the network uses its weights in another way than on the first inputs of this kind"
        if not numbers:
            raise NotSupported(
                f"{another}; single examples have gradients only where the network does not branch on its "
                "inputs, nor cuts them by what is in them"
            )
        if self.plan.together:
            raise NotSupported(
                f"{another}, and single examples of it have no gradients of their own in training, because of its dropout or "
                f"batch norms; if {numbers[0]} chooses layers, give it as a str"
            )
        self.recordings.warn_of_numbers(another, numbers[0])
        self.plan, self.alone = Plan((), (), frozenset(self.weights)), []
        self.slopes, self.shapes, self.model = [], [], self._apart()

    def _expect_at(self, out: Tensor, place: int) -> None:
        """Hook an output; where it is a copy in another type, what it is copied from, which a loss inside may be of."""
        dtype, node, number = out.dtype, out.grad_fn, out.output_nr
        while node is not None and node.name() == "ToCopyBackward0":
            ((node, number),) = node.next_functions
        on_gradient(out, lambda gradient: self._arrived_at_output(place, gradient.to(dtype)), node, number)

    def _arrived_at_output(self, place: int, gradient: Tensor) -> None:
        self._count_once(gradient, again=bool(self.columns) and self.columns[place] is not None)
        self.columns[place] = gradient.detach()

    def _arrived(self, place: int, gradient: Tensor) -> None:
        if not self.plan.calls:  # it was left
            return
        self._count_once(gradient, again=bool(self.slopes) and self.slopes[place] is not None)
        self.slopes[place] = gradient.detach()
        if self.counted and not self.asked:
            self._look_at_once(place)

    def _count_once(self, gradient: Tensor, again: bool) -> None:
        if self.finished or again:
            raise NotSupported(
                "backward came twice through one forward pass, and the parts of an example's gradient must be added up "
                "before they are squared; add the losses up and call backward once"
            )
        self._reached(gradient)
        if not self.begun:
            self.begun = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]

    def _look_at_once(self, place: int) -> None:
        """Measure a use whose weights are used nowhere else, so that a backward pass never holds all its gradients."""
        assert self.traced is not None
        names = self.alone[place]
        if not names or len(names) < len(set(self.plan.calls[place].names)):
            return
        with torch.no_grad(), self.optimizer.ledger.noting(self.by_hand):
            if self.optimizer.measure_use(self.traced, place, self.slopes[place], names):
                self.seen.update(names)
                self.traced.given[place] = None  # type: ignore[index]
                self.slopes[place] = self.slopes[place].new_zeros(()).expand(self.slopes[place].shape)

    def _finish(self) -> None:
        """At the end of the backward pass: measure, and let go of everything."""
        if self.finished:  # hooks of two devices may both have asked for it
            return
        assert self.traced is not None
        if not self.counted:  # the inputs' gradients alone were asked for: nothing of the weights' is in `.grad`
            self.begun, self.slopes[:] = False, [None] * len(self.slopes)
            self.columns = [None] * len(self.columns)
            return
        self.finished = True
        for i, slope in enumerate(self.slopes):
            if slope is None:  # the loss does not depend on this use
                dtype, device, shape = self.shapes[i]
                self.slopes[i] = torch.zeros((), dtype=dtype, device=device).expand(shape)
        column = self._column()
        # Python shows a warning once until filters change, so that they are left alone where nothing will be said.
        quiet = without_advice() if self.plan.fallback else nullcontext()
        with torch.no_grad(), quiet, self.optimizer.ledger.noting(self.by_hand):
            rest = [k for k in self.weights if k not in self.seen and k in self.plan.reached]
            self.optimizer.measure(self.traced, column.unsqueeze(0), rest)
        if self.optimizer.witness is not None:
            self.optimizer.witness.stand()
        self.traced, self.slopes, self.columns, self.model = None, [], [], None

    def _column(self) -> Tensor:
        """The gradient of the network's outputs, as one tensor."""
        if any(c is not None for c in self.columns):
            return joined([z if c is None else c for c, z in zip(self.columns, self.like, strict=True)])
        if self.plan.fallback:
            raise NotSupported(
                f"the gradients of {', '.join(sorted(self.plan.fallback))} are taken example by example, from those of the "
                "network's outputs, and there are none; let the network return what the loss is made of"
            )
        return _count(self.examples)


def on_gradient(out: Tensor, function: Callable[[Tensor], None], node: Any = None, number: int | None = None) -> None:
    """Call a function with the gradient that goes on from a tensor, after all hooks that change it, whenever they are hung.

    Args:
        out: The tensor.
        function: Sees the gradient.
        node: In place of the one that made the tensor.
        number: Of this node's outputs, in place of the tensor's.
    """
    node, number = (out.grad_fn, out.output_nr) if node is None or number is None else (node, number)
    if node is None:  # an input that goes out as it came in
        out.register_hook(function)
        return

    def arrived(gradients: Sequence[Tensor | None]) -> None:
        if (gradient := gradients[number]) is not None:
            function(gradient)

    node.register_prehook(arrived)


ALL, SOME, BY_HAND = "all", "some", "by hand"


def _wanted(weights: Sequence[Tensor]) -> str:
    """Whether what runs backwards now is `backward`, `backward` of some inputs alone, or `autograd.grad`."""
    if not weights:
        return SOME
    try:
        return ALL if torch._C._will_engine_execute_node(get_gradient_edge(weights[0]).node) else SOME  # type: ignore[attr-defined]
    except RuntimeError:  # it does not say so of leaves in `autograd.grad`
        return BY_HAND


def _with_one_column(slopes: list[Any], columns: Tensor) -> list[Tensor]:
    """What was gathered, whatever the columns: a pass is not to hold on to itself."""
    return [s.unsqueeze(0) for s in slopes]


def _count(examples: int) -> Tensor:
    """As many rows as there are examples, and no memory."""
    return torch.zeros(()).expand(examples, 1)
