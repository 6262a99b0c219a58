"""One forward pass with taps, from which columns of output gradients are pulled back to every use of a weight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from ..core import batch as batches
from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from .eager import without_advice
from .examples import gradients_by_example
from .layouts import Layout
from .recording import Call, Course, Recorder
from .rules.opaque import Opaque
from .rules.rule import for_columns

PROBES = 3  # examples on which a plan is made and checked


@dataclass(frozen=True)
class Plan:
    """Where a network uses its weights, the same for every batch.

    Attributes:
        calls: The tapped uses, in order.
        layouts: Where each of them keeps the examples.
        fallback: Unknowns whose gradients are taken example by example instead.
        numbers: The numbers of the tapped uses among all.
        opaque: Numbers of uses that are differentiated alone although there is a rule.
        together: Whether an example by itself would be another one than in its batch.
        course: Of the pass that it was made of.
    """

    calls: tuple[Call, ...]
    layouts: tuple[Layout, ...]
    fallback: frozenset[str]
    numbers: tuple[int, ...] = ()
    opaque: frozenset[int] = frozenset()
    together: bool = False
    course: Course = Course((), (), 0, None)
    shapes: dict[Any, list[tuple[torch.Size, torch.dtype]]] = field(default_factory=dict, compare=False)

    @property
    def reached(self) -> frozenset[str]:
        """The unknowns that the output depends on."""
        return self.fallback.union(*(call.names for call in self.calls))

    def followed_by(self, course: Course, examples: int, names: Collection[str]) -> bool:
        """Whether a pass of so many examples used the weights of these names as this plan has it."""
        if self.fallback.issuperset(names):
            return True
        own = self.course
        # A use more would go unseen: it has no number in the plan.
        if (course.kinds, course.count, course.moved) != (own.kinds, own.count, own.moved):
            return False
        each = zip(self.layouts, course.shapes, own.shapes, strict=True)
        return all(layout.fits(shape, examples, probe, PROBES) for layout, shape, probe in each)

    def uses(self, name: str) -> list[tuple[int, str]]:
        """The calls that use an unknown, and as what."""
        return [
            (i, role)
            for i, call in enumerate(self.calls)
            for role in ("weight", "bias")
            if (source := getattr(call, role)) is not None and name in source.names
        ]

    def direct(self, name: str) -> tuple[int, str] | None:
        """The one use of an unknown that is used once and as it is."""
        found = self.uses(name)
        if name in self.fallback or len(found) != 1:
            return None
        i, role = found[0]
        return (i, role) if getattr(self.calls[i], role).name == name else None


@dataclass(frozen=True)
class Traced:
    """A forward pass of a batch.

    Attributes:
        names: The unknowns whose curvature is wanted; all others are constants.
        outputs: The network's.
        calls: The plan's, as they were in this pass.
        given: What was recorded of the inputs of every call.
        held: Bytes of one column of output gradients of all calls.
        course: Of the pass.
    """

    model: BayesianModel
    params: Mapping[str, Tensor]
    inputs: Any
    key: Tensor | None
    names: tuple[str, ...]
    plan: Plan
    outputs: Tensor
    calls: Sequence[Call]
    given: Sequence[Any]
    held: int
    pull_back: Callable[[Tensor], Sequence[Tensor]]
    course: Course = Course((), (), 0, None)

    @property
    def examples(self) -> int:
        """How many."""
        return self.outputs.shape[0]

    def pull(self, columns: Tensor) -> list[Tensor]:
        """Gradients of every call's output, each with the leading axis of the columns (R, N, outputs...)."""
        return list(self.pull_back(columns))[: len(self.calls)] if self.calls else []

    def pull_all(self, column: Tensor) -> tuple[list[Tensor], Weights]:
        """What `pull` gives of one column (N, outputs...), and the unknowns' own gradients, from a pass made for learning.

        The pass can be pulled through once.
        """
        found = list(self.pull_back(column.unsqueeze(0)))
        own = {k: g.squeeze(0) for k, g in zip(self.names, found[len(self.calls) :], strict=True)}
        return found[: len(self.calls)], own

    def gradients(
        self, slopes: Sequence[Tensor], columns: Tensor, names: Sequence[str], begin: int, end: int
    ) -> Weights:
        """Per-example gradients (R, n, shape) of some unknowns for examples begin to end."""
        found: Weights = {}
        wanted = set(names) - self.plan.fallback
        for i, call in enumerate(self.calls):
            for role, source in (("weight", call.weight), ("bias", call.bias)):
                if source is None or wanted.isdisjoint(source.names):
                    continue
                for name, gradient in self._of_use(i, role, slopes[i], begin, end).items():
                    if name in wanted:
                        found[name] = found[name] + gradient if name in found else gradient
        rest = [n for n in names if n in self.plan.fallback]
        if rest:
            few = batches.rows(self.inputs, slice(begin, end))
            found.update(gradients_by_example(self.model, self.params, few, columns[:, begin:end], rest, self.key))
        for name in names:
            if name not in found:  # an unknown that the outputs do not depend on
                w = self.params[name]
                found[name] = w.new_zeros(columns.shape[0], end - begin, *w.shape)
        return found

    def _of_use(self, i: int, role: str, slope: Tensor, begin: int, end: int) -> Weights:
        call, layout, total, given = self.calls[i], self.plan.layouts[i], self.examples, self.given[i]
        source = getattr(call, role)
        gradient: Any
        if isinstance(call.rule, Opaque):
            gradient = call.rule.between(given, slope, layout, total, begin, end)
        else:
            if (begin, end) != (0, total):
                given = None if given is None else layout.take(given, begin, end, total)
                slope = for_columns(lambda s: layout.take(s, begin, end, total), slope)
            own = call.rule.weight_gradients if role == "weight" else call.rule.bias_gradients
            gradient = own(given, slope, layout, end - begin)
        if source.name is not None:
            return {source.name: gradient}
        pair: Any = torch.func.vjp(source.value, {n: self.params[n] for n in source.names})
        value, back = pair
        gradient = pytree.tree_map(lambda g, v: g.to(v.dtype), gradient, value)
        with without_advice():
            (pulled,) = torch.vmap(torch.vmap(back))(gradient)
        return pulled


def run(
    model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None, names: tuple[str, ...], plan: Plan,
    apart: bool = False, learning: bool = False,
) -> Traced:  # fmt: skip
    """The pass of a plan; see `Recorder` for `apart`. One for `learning` gives `pull_all`, and writes the network's buffers."""
    params = {k: v.detach() for k, v in params.items()}
    if model.buffers and model.network.written and not learning:  # a look at the curvature leaves no trace
        model = model.bound(buffers={k: v.clone() for k, v in model.buffers.items()})
    wanted, course = frozenset(plan.numbers), Course((), (), 0, None)

    learnt = {k: params[k] for k in names} if learning else {}

    def forward(tap: Callable[[int, Tensor], Tensor], leaves: Weights) -> tuple[Tensor, Recorder]:
        chosen = lambda number, out: tap(number, out) if number in wanted else None  # noqa: E731
        own = {**params, **leaves}
        recorder = Recorder(*known(model, own, names, key), chosen, plan.opaque, apart)
        nonlocal course
        with recorder:
            outputs = model.outputs(own, inputs, key)
        course = recorder.course(plan.numbers)
        return outputs, recorder

    if under_vmap():
        like, shapes = next(iter(params.values())), tuple(t.shape for t in pytree.tree_leaves(inputs))
        outputs, calls, given, taps, pull = _transformed(
            forward, learnt, plan.shapes.setdefault(shapes, []), like.device
        )
    else:
        outputs, calls, given, taps, pull = _plain(forward, learnt)
    held = sum(t.numel() * t.element_size() for t in taps)
    return Traced(model, params, inputs, key, names, plan, outputs, calls, given, held, pull, course)


def _plain(forward: Callable[..., tuple[Tensor, Recorder]], learnt: Weights) -> tuple:
    """By autograd itself. Outputs that are in its graph are their own taps: adding zeros would take time and memory."""
    leaves = {k: w.detach().requires_grad_() for k, w in learnt.items()}
    taps: list[Any] = []
    shapes: list[Tensor] = []

    def tap(number: int, out: Tensor) -> Tensor | bool:
        zeros = torch.zeros((), dtype=out.dtype, device=out.device).expand(out.shape)
        shapes.append(zeros)
        if out.requires_grad:
            taps.append(get_gradient_edge(out))  # not the tensor, which may be written into
            return True
        taps.append(zeros.requires_grad_())
        return taps[-1]

    with torch.enable_grad():
        outputs, recorder = forward(tap, leaves)
    calls, given = list(recorder.calls.values()), [_detached(t) for t in recorder.inputs.values()]
    held = list(shapes)
    taps.extend(leaves.values())
    shapes.extend(torch.zeros((), dtype=w.dtype, device=w.device).expand(w.shape) for w in leaves.values())

    def back(column: Tensor, batched: bool) -> list[Tensor]:
        found: Sequence[Tensor | None] = [None] * len(taps)
        if outputs.requires_grad:
            found = torch.autograd.grad(
                outputs, taps, column, retain_graph=not leaves, allow_unused=True, is_grads_batched=batched
            )
        front = column.shape[: int(batched)]
        return [z.detach().expand(*front, *z.shape) if g is None else g for g, z in zip(found, shapes, strict=True)]

    def pull(columns: Tensor) -> Sequence[Tensor]:
        if columns.shape[0] == 1:
            return [s.unsqueeze(0) for s in back(columns[0], False)]
        try:
            return back(columns, True)
        except RuntimeError:  # an operation whose backward pass vmap does not know
            return [torch.stack(s) for s in zip(*[back(c, False) for c in columns], strict=True)]

    return outputs.detach(), calls, given, held, pull


def _detached(given: Any) -> Any:
    if given is None or isinstance(given, Tensor):
        return given if given is None else given.detach()
    return pytree.tree_map_only(Tensor, torch.detach, given)


def _transformed(
    forward: Callable[..., tuple[Tensor, Recorder]],
    learnt: Weights,
    shapes: list[tuple[torch.Size, torch.dtype]],
    device: torch.device,
) -> tuple:
    """Inside `vmap` and the like, where only their own kind of differentiation works; shapes must be known before."""
    seen: list[tuple[torch.Size, torch.dtype]] = []

    def look(number: int, out: Tensor) -> bool:
        seen.append((out.shape, out.dtype))
        return True

    if not shapes:
        with torch.enable_grad():  # as in the pass itself
            outputs, _ = forward(look, {})
        if not seen and not learnt:  # there is nothing to tap
            return outputs, [], [], [], None
        shapes.extend(seen)
    rest: list[Any] = []

    def tapped(*primals: Tensor) -> tuple[Tensor, list[Tensor]]:
        following = iter(primals)
        own = dict(zip(learnt, primals[len(shapes) :], strict=True))
        out, recorder = forward(lambda number, _: next(following), own)
        leaves, spec = pytree.tree_flatten((list(recorder.calls.values()), list(recorder.inputs.values())))
        rest[:] = leaves, spec
        return out, [t for t in leaves if isinstance(t, Tensor)]

    taps = [torch.zeros((), dtype=d, device=device).expand(s) for s, d in shapes]
    triple: Any = torch.func.vjp(tapped, *taps, *learnt.values(), has_aux=True)
    outputs, back, tensors = triple
    following = iter(tensors)  # what the pass recorded, without the wrapping that ends with it
    leaves = [next(following) if isinstance(t, Tensor) else t for t in rest[0]]
    calls, given = pytree.tree_unflatten(leaves, rest[1])

    def pull(columns: Tensor) -> Sequence[Tensor]:
        if columns.shape[0] == 1:
            return [s.unsqueeze(0) for s in back(columns[0])]
        return torch.vmap(back)(columns)

    return outputs, calls, given, taps, pull


def known(
    model: BayesianModel, params: Mapping[str, Tensor], names: tuple[str, ...], key: Tensor | None
) -> tuple[Weights, list[Tensor]]:
    """The weights to watch, and what is constant: all other parameters, buffers, and the key of dropout masks."""
    weights = {k: params[k] for k in names}
    device = next(iter(params.values())).device
    module = model.network.module(device, "train" if model.training else "eval")
    others = [v for k, v in params.items() if k not in weights] + ([] if key is None else [key])
    return weights, [*others, *module.parameters(), *module.buffers(), *(model.buffers or {}).values()]
