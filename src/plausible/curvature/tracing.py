"""Plans: which uses of a network's weights have a rule, where they keep the examples, and what is left over.

A plan is made once for a network and a kind of input, on a few examples at slightly shaken weights (a layer that
starts at zero, as in a low-rank adapter, hides what is behind it), and checked against plain gradients of one example's
outputs after the other. Examples may meet in batch norms only; while a plan is made their statistics are held constant.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils import _pytree as pytree

from ..core.errors import NotSupported
from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from ..weights.network import Network
from ..weights.rng import forked, run_key
from .eager import eagerly
from .kept import Kept
from .layouts import Layout, find_layout
from .passes import PROBES, Plan, Traced, known, run
from .precision import WithoutAutocast, whole_products
from .recent import Recent
from .recording import Recorder
from .rules.opaque import Opaque
from .rules.rule import room

__all__ = ["Plan", "Traced", "column_block", "plan_for", "trace"]

log = logging.getLogger("plausible")

SHAKE = 0.1  # how much its weights are moved, beside what they start with
FURTHER = (1.0, 1.0, 1.0, 10.0, 10.0, 10.0)  # and where the outputs seem not to depend on all of them
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # of a plan's gradients on these
NARROW = {
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 3e-2,
}  # and of uses that the network itself casts down
ROUNDING = 16  # of the last digits of the largest gradient may be lost in any


def trace(
    model: BayesianModel,
    params: Mapping[str, Tensor],
    inputs: Any,
    key: Tensor | None = None,
    names: Sequence[str] | None = None,
    learning: bool = False,
) -> Traced:
    """Run the network once, in the mode and precision that the model is bound to; see `run` for `learning`."""
    names = tuple(model.weight_names if names is None else names)
    plan = plan_for(model, params, inputs, names)
    traced = run(model, params, inputs, key, names, plan, learning=learning)
    if plan.followed_by(traced.course, traced.examples, names):
        return traced
    # The network took another way than on the examples of the plan, so that only plain gradients are safe.
    if plan.together:
        raise NotSupported(
            "the network uses its weights in another way than on other inputs, and has dropout or batch norms in "
            "training; a network that branches on its inputs has per-example gradients in eval mode only"
        )
    return run(model, params, inputs, key, names, Plan((), (), frozenset(names)), learning=learning)


def column_block(traced: Traced) -> int:
    """How many columns to pull at a time."""
    return max(1, room(traced.outputs.device) // max(1, traced.held))


_plans: weakref.WeakKeyDictionary[Network, Recent] = weakref.WeakKeyDictionary()


@eagerly
def plan_for(model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, names: tuple[str, ...]) -> Plan:
    """The plan of a network for inputs of this kind."""
    ready = _plans.setdefault(model.network, Recent())
    leaves, spec = pytree.tree_flatten(inputs)
    shapes = tuple((t.shape[1:], t.dtype) for t in leaves)
    like = next(iter(params.values()))
    written = tuple(model.belief.non_centred)  # weights that are products of unknowns in this model
    signature = (names, written, model.training, model.precision, like.device, like.dtype, shapes, str(spec))
    return ready.get_or_make(signature, lambda: _made(model, params, inputs, names, like.device))


def _made(
    model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, names: tuple[str, ...], device: torch.device
) -> Plan:
    inside = under_vmap()
    bare = pytree.tree_map(_bare, inputs)
    with temporarily_clear_interpreter_stack() if inside else nullcontext():
        few = pytree.tree_map(_some, bare)
        start = {k: w.to(device) for k, w in model.start.items()} if inside else params
        return _made_of_a_few(model, start, few, names)


def _made_of_a_few(model: BayesianModel, params: Mapping[str, Tensor], few: Any, names: tuple[str, ...]) -> Plan:
    device = next(iter(params.values())).device
    autocast = WithoutAutocast(device)
    kept = Kept(model.network.module(device, "train" if model.training else "eval"), model.buffers)
    try:
        return _Maker(model, params, few, names, kept, autocast).plan()
    except NotSupported:
        raise
    except RuntimeError:  # a network that casts by hand, too, may have operations that meet two types without it
        if not autocast.met:
            raise
        return _Maker(model, params, few, names, kept, nullcontext()).plan()
    finally:
        kept.put_back()


class Seen(NamedTuple):
    """All uses of one pass, where each keeps the examples, and whether the outputs depend on it at all."""

    recorder: Recorder
    layouts: list[Layout | None]
    connected: list[bool]


class _Maker:
    """Makes one plan."""

    def __init__(
        self,
        model: BayesianModel,
        params: Mapping[str, Tensor],
        few: Any,
        names: tuple[str, ...],
        kept: Kept,
        autocast: Any,
    ):
        self.model, self.few, self.names = model.bound(precision=None), few, names
        self.kept, self.autocast = kept, autocast
        self.types: set[torch.dtype] = set()  # that uses came out in
        self.key = run_key(0, device=next(iter(params.values())).device) if model.needs_key else None
        self.params = {k: v.detach() for k, v in params.items()}
        start, self.params = self.params, self._shaken(self.params, SHAKE)
        if not getattr(autocast, "met", True):  # it costs time at every operation
            self.autocast = nullcontext()
        self.truth, met = self._plain_gradients()
        self._wake(start)
        # Alone, without its neighbours and its place among them, an example of such a network would be another one.
        self.together = met or model.training and bool(model.network.dropouts or model.network.draws)

    def plan(self) -> Plan:
        """Rules where they agree with plain gradients; for the rest one example after the other, if that agrees."""
        plan, lost = self._found()
        if not self.together:
            plan = _without(plan, lost | {n for c in plan.calls if isinstance(c.rule, Opaque) for n in c.names})
            plan = _without(plan, self._wrong(plan, [n for n in self.names if n not in plan.fallback]))
            if not self._wrong(plan, sorted(plan.fallback)):
                log.debug(
                    "gradients of %s are taken example by example", ", ".join(sorted(plan.fallback)) or "no weight"
                )
                return plan
            plan, lost = self._found()
        wrong = lost | self._wrong(plan, [n for n in self.names if n not in lost])
        if wrong:
            self._refuse_what_is_not_finite()
            raise NotSupported(
                f"{', '.join(sorted(wrong))}: examples meet in this network in some other way than by a batch norm, so they "
                "have no gradients of their own; examples are along the first axis of inputs and outputs (batch_first=True "
                "in layers that ask), and what is in them does not say where rows go; keep these "
                "weights fixed with parameters=, or use group norm"
            )
        return replace(plan, together=True)

    def _refuse_what_is_not_finite(self) -> None:
        """Nothing can be found out from gradients that are not, whatever the network does with examples."""
        if all(bool(t.isfinite().all()) for t in self.truth.values()):
            return
        given = [t for t in pytree.tree_leaves(self.few) if isinstance(t, Tensor) and t.is_floating_point()]
        with torch.no_grad(), self._repeatable():
            finite = bool(self.model.outputs(self.params, self.few, self.key).isfinite().all())
        if not all(bool(t.isfinite().all()) for t in given):
            what = "inputs have values"
        else:
            what = "network's gradients have values" if finite else "network's outputs have values"
        raise FloatingPointError(
            f"the {what} that are nan or infinite on the first examples, from which no curvature can be had; clean the data, or "
            "look for a logarithm, root or division in the network"
        )

    def _found(self) -> tuple[Plan, set[str]]:
        """All uses with their layouts, and the unknowns among them whose examples could not be told apart."""
        recorder, layouts, connected = self.seen
        numbers, calls = tuple(recorder.calls), tuple(recorder.calls.values())
        odd = {
            n for n, c, layout in zip(numbers, calls, layouts, strict=True)
            if layout is not None and not c.rule.suits(layout)
        }  # fmt: skip
        kept = [i for i in range(len(calls)) if connected[i]]
        lost = set(recorder.lost) | {n for i in kept if layouts[i] is None for n in calls[i].names}
        if recorder.moved is not None:  # from there on, where examples were found is where these few are
            lost |= {n for i in kept if numbers[i] >= recorder.moved for n in calls[i].names}
        if not self.together:  # a use that seems to do nothing, of weights that do something: it may be asleep
            lost |= {n for i, c in enumerate(connected) if not c for n in calls[i].names if n in self.used}
        plan = Plan(
            tuple(calls[i] for i in kept), tuple(layouts[i] or Layout() for i in kept), frozenset(),
            tuple(numbers[i] for i in kept), frozenset(odd),
        )  # fmt: skip
        if odd:  # operations that their rule cannot read
            recorder = self._recorded(frozenset(odd))
            plan = replace(plan, calls=tuple(recorder.calls[n] for n in plan.numbers))
        return replace(plan, course=recorder.course(plan.numbers)), lost

    def _layouts(self, plan: Plan) -> tuple[list[Layout | None], list[bool]]:
        """Of every use, and whether the outputs depend on it at all."""
        with self._repeatable():
            traced = run(self.model, self.params, self.few, self.key, self.names, plan, apart=True)
        columns = self._columns(traced.outputs)
        alone = torch.stack([Layout().only(columns, i, PROBES) for i in range(PROBES)])
        touched = [s != 0 for s in traced.pull(alone)]
        connected = [bool(t.any()) for t in touched]
        return [find_layout(list(t)) if c else None for t, c in zip(touched, connected, strict=True)], connected

    def _wrong(self, plan: Plan, names: Sequence[str]) -> set[str]:
        """The unknowns whose gradients by this plan are not the plain ones."""
        if not names:
            return set()
        with self._repeatable():
            traced = run(self.model, self.params, self.few, self.key, self.names, plan, apart=True)
            column = self._columns(traced.outputs).unsqueeze(0)
            found = traced.gradients(traced.pull(column), column, names, 0, PROBES)
        wrong = set()
        largest = max(float(t.abs().max()) for t in self.truth.values())
        for name in names:
            truth = self.truth[name]
            scale, gap = truth.abs().max(), (found[name][0] - truth).abs().max()
            share, rounding = self._tolerance(truth.dtype)
            if not bool(gap <= share * scale + rounding * largest + torch.finfo(truth.dtype).tiny):
                wrong.add(name)
        return wrong

    def _tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """How much a gradient of this type may differ, as a share of its own largest entry and of the largest of all."""
        # A gradient that is zero but for rounding, such as that of a bias of attention's keys, agrees with nothing.
        share, rounding = TOLERANCE.get(dtype, 1e-1), ROUNDING * torch.finfo(dtype).eps
        for narrow in self.types:
            if torch.finfo(narrow).eps > torch.finfo(dtype).eps and narrow in NARROW:
                share, rounding = max(share, NARROW[narrow]), max(rounding, torch.finfo(narrow).eps)
        return share, rounding

    def _plain_gradients(self) -> tuple[Weights, bool]:
        """Gradients (PROBES, shape) of one example's outputs after the other, and whether a batch norm mixes."""
        leaves = {k: v.requires_grad_(k in self.names) for k, v in self.params.items()}
        note = lambda number, out: self.types.add(out.dtype)  # noqa: E731
        recorder = Recorder(*known(self.model, self.params, self.names, self.key), note, apart=True)
        with torch.enable_grad(), self._repeatable(), recorder:
            outputs = self.model.outputs(leaves, self.few, self.key)
        if outputs.dim() == 0:
            raise NotSupported(
                "the network returns a single number, such as its loss, in which examples cannot be told apart; let it return "
                "what the loss is made of, one row for every example"
            )
        columns = self._columns(outputs.detach())
        own = [leaves[n] for n in self.names]
        pulled = functools.partial(torch.autograd.grad, outputs, own, retain_graph=True, allow_unused=True)
        try:
            with whole_products(outputs.device):
                rows = [pulled(Layout().only(columns, i, PROBES)) for i in range(PROBES)]
        except torch.utils.checkpoint.CheckpointError as error:
            raise NotSupported(
                "the network recomputes activations in its backward pass, so single examples have no gradients; turn activation "
                "checkpointing off, or take IVON or ADVI"
            ) from error
        self.params = {k: v.detach() for k, v in leaves.items()}
        self.used = {n for n, g in zip(self.names, rows[0], strict=True) if g is not None}
        zeros = [torch.zeros_like(w) for w in own]
        filled = [[z if g is None else g for z, g in zip(zeros, row, strict=True)] for row in rows]
        return {n: torch.stack(g) for n, *g in zip(self.names, *filled, strict=True)}, recorder.met

    def _recorded(self, opaque: frozenset[int] = frozenset()) -> Recorder:
        everything = lambda number, out: True  # noqa: E731
        recorder = Recorder(*known(self.model, self.params, self.names, self.key), everything, opaque, apart=True)
        # With gradients on, since what a network computes without is another thing; nothing here asks for any.
        with torch.enable_grad(), self._repeatable(), recorder:
            self.model.outputs(self.params, self.few, self.key)
        return recorder

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """Every pass starts from the same and draws the same numbers, unknown to the global generators; nothing is rounded."""
        device = next(iter(self.params.values())).device
        self.kept.put_back()
        with whole_products(device), forked(0, devices=[device]), self.autocast:
            yield

    @staticmethod
    def _columns(outputs: Tensor) -> Tensor:
        """Unequal directions: a column of ones would be lost on a softmax or a mean."""
        return torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)

    def _wake(self, start: Weights) -> None:
        """Move the weights further where the outputs seem not to depend on a use.

        It may be a layer all of whose ReLUs are dead on the few examples of a plan, and not on others.
        """
        first = best = self.params
        self.seen = self._look()
        for seed, shake in enumerate(FURTHER, 2):
            if all(self.seen.connected):
                break
            self.params = self._shaken(start, shake, seed)
            seen = self._look()
            if sum(seen.connected) > sum(self.seen.connected):
                best, self.seen = self.params, seen
        self.params = best
        if best is not first:
            self.truth, _ = self._plain_gradients()

    def _look(self) -> Seen:
        """All uses at these weights."""
        recorder = self._recorded()
        calls = tuple(recorder.calls.values())
        plan = Plan(calls, tuple(Layout() for _ in calls), frozenset(), tuple(recorder.calls))
        return Seen(recorder, *self._layouts(plan))

    def _shaken(self, params: Weights, shake: float, seed: int = 1) -> Weights:
        """Weights near the given ones, none of them zero; themselves where that is no place for the network to be."""
        rng, moved = torch.Generator().manual_seed(seed), dict(params)
        for name in self.names:
            w = params[name]
            width = shake / math.sqrt(w.numel() / w.shape[0]) if w.dim() > 1 else shake
            moved[name] = w + width * torch.randn(w.shape, generator=rng).to(w)
        with torch.no_grad(), self._repeatable():
            fine = bool(self.model.outputs(moved, self.few, self.key).isfinite().all())
        return moved if fine else {k: v.clone() for k, v in params.items()}


def _without(plan: Plan, lost: set[str]) -> Plan:
    """The plan with some more unknowns in the fallback."""
    fallback = plan.fallback | lost
    kept = [i for i, call in enumerate(plan.calls) if not set(call.names) <= fallback]
    course = replace(
        plan.course, kinds=tuple(plan.course.kinds[i] for i in kept), shapes=tuple(plan.course.shapes[i] for i in kept)
    )
    return Plan(
        tuple(plan.calls[i] for i in kept), tuple(plan.layouts[i] for i in kept), fallback,
        tuple(plan.numbers[i] for i in kept), plan.opaque, course=course,
    )  # fmt: skip


def _some(tensor: Tensor) -> Tensor:
    return tensor[torch.arange(PROBES, device=tensor.device) % tensor.shape[0]]


def _bare(tensor: Tensor) -> Tensor:
    """The memory behind a tensor inside `vmap` and the like; of several, the first."""
    functorch = torch._C._functorch
    axes = []
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            axes.append(functorch.maybe_get_bdim(tensor))
        tensor = functorch.get_unwrapped(tensor)
    with temporarily_clear_interpreter_stack():
        for axis in reversed(axes):
            tensor = tensor.select(axis, 0)
    return tensor
