"""Where a network uses its weights: found by watching the operations of one forward pass.

Weights are recognised by identity, so functional calls, tied and reused weights count like any others. Operations with
a rule (linear, convolution, ...) are *tapped*: a zero is added to their output, whose gradient is that of the output,
and with the recorded input it gives every example's gradient. What is computed from weights alone (a transpose, a
slice, a weight norm, a low-rank product) is a weight, too: a *derived* one, whose gradient is pulled back. Operations
without a rule can be tapped as well, as `Opaque` ones.

A *use* is one output of one operation that weights meet data in. Uses are numbered in the order of the pass.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..weights.layer_calls import opened, tensors_in
from .rearranging import rearranges
from .rules import find
from .rules.opaque import Opaque

# Functions that take a weight only to read its type, place or shape.
HARMLESS = {torch.Tensor.type_as, torch.Tensor.expand_as, torch.Tensor.view_as, torch.Tensor.reshape_as}
WRITERS = {torch.Tensor.__setitem__}


@dataclass(frozen=True)
class Source:
    """A tensor made of weights alone: one of the unknowns (`name`), or the value of `function` on other sources."""

    name: str | None = None
    function: Callable[..., Any] | None = None
    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    part: int | None = None  # which entry, where the function gives several tensors

    @property
    def names(self) -> tuple[str, ...]:
        """The unknowns it is made of."""
        if self.name is not None:
            return (self.name,)
        inner = [s for s in pytree.tree_leaves((self.args, self.kwargs), is_leaf=_is_source) if isinstance(s, Source)]
        return tuple(dict.fromkeys(n for s in inner for n in s.names))

    def value(self, weights: Mapping[str, Tensor]) -> Any:
        """Its value at other weights."""
        if self.name is not None:
            return weights[self.name]
        swap = lambda leaf: leaf.value(weights) if isinstance(leaf, Source) else leaf  # noqa: E731
        args, kwargs = pytree.tree_map(swap, (self.args, dict(self.kwargs)), is_leaf=_is_source)
        assert self.function is not None
        out = self.function(*args, **kwargs)
        return out if self.part is None else out[self.part]


def _is_source(leaf: Any) -> bool:
    return isinstance(leaf, Source)


def together(*tensors: Any) -> tuple:
    """Several weights of one operation, as one source."""
    return tensors


@dataclass(frozen=True)
class Call:
    """One use of weights.

    Attributes:
        rule: How an example's gradient follows from input and output gradient.
        weight: What is used as the weight, None if that is no unknown.
        bias: Likewise.
        size: How many numbers the weights are, as they are used.
    """

    rule: Any
    weight: Source | None
    bias: Source | None
    size: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The unknowns that meet here."""
        return tuple(n for s in (self.weight, self.bias) if s is not None for n in s.names)

    @property
    def kind(self) -> Any:
        """What must be the same in every pass."""
        return (self.rule, *(None if s is None else (s.name, s.names) for s in (self.weight, self.bias)))


def _source(args: tuple, kwargs: dict, name: str | None, function: Any, part: int | None) -> Source:
    return Source(name, function, args, kwargs, part)


def _call(weight: Source | None, bias: Source | None, rule: Any, size: int) -> Call:
    return Call(rule, weight, bias, size)


# Nodes of a tree, so that tensors inside them can be reached.
pytree.register_pytree_node(
    Source,
    lambda s: ([s.args, dict(s.kwargs)], (s.name, s.function, s.part)),
    lambda parts, rest: _source(*parts, *rest),
)
pytree.register_pytree_node(
    Call,
    lambda c: ([c.weight, c.bias], (c.rule, c.size)),
    lambda parts, rest: _call(*parts, *rest),
)


@dataclass(frozen=True)
class Course:
    """What a pass did with weights, as far as its plan has to know.

    Attributes:
        kinds: Of the tapped uses.
        shapes: Of their outputs.
        count: How many uses there were, tapped or not.
        moved: How many of them there were before data said where rows go; None where they never did.
    """

    kinds: tuple[Any, ...]
    shapes: tuple[torch.Size, ...]
    count: int
    moved: int | None


class Recorder(TorchFunctionMode):
    """Watches one forward pass.

    Args:
        weights: The unknowns, by name.
        constants: Other tensors that do not depend on the data: fixed parameters and buffers.
        tap: Called with the number and the output of a use. Gives what to add to it, or True where nothing need be added,
            or None for a use that is not of interest.
        opaque: Uses that are to be seen as opaque although there is a rule.
        apart: Hold the statistics of batch norms constant, so that no example feels another one.
    """

    follows_constants = True  # so that masks are computed where they can be seen to depend on a key alone

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        constants: Sequence[Tensor],
        tap: Callable[[int, Tensor], Tensor | bool | None],
        opaque: frozenset[int] = frozenset(),
        apart: bool = False,
    ):
        super().__init__()
        self.tap, self.opaque, self.apart = tap, opaque, apart
        self.sources: dict[int, Source] = {id(w): Source(name=k) for k, w in weights.items()}
        self.fixed: set[int] = {id(t) for t in constants}
        self.alive: list[Any] = [dict(weights), list(constants)]  # an id means something as long as its tensor lives
        self.count = 0
        self.calls: dict[int, Call] = {}
        self.inputs: dict[int, Any] = {}
        self.shapes: dict[int, torch.Size] = {}
        self.moved: int | None = None  # how many uses there were before data said where rows go
        self.lost: set[str] = set()  # unknowns that went where no tap can follow
        self.met = False  # whether a batch norm let examples meet

    def __torch_function__(self, func: Any, types_: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._inside(func, args, kwargs)
        if func is torch.batch_norm and args[5]:
            self.met = True
            args = _with_constant_statistics(args) if self.apart else args
        tensors = list(tensors_in((args, kwargs)))
        has_weight = any(id(t) in self.sources for t in tensors)
        if self.moved is None and rearranges(func, args, kwargs, self._depends_on_no_data):
            self.moved = self.count
        if all(id(t) in self.sources or id(t) in self.fixed for t in tensors):
            out = func(*args, **kwargs)
            # What the network computes without gradients, such as the vectors of a spectral norm, is a number to it.
            follows = has_weight and torch.is_grad_enabled()
            return self._derived(func, args, kwargs, out) if follows else self._constant(out)
        writes = _writes(func)
        if writes:
            self.fixed.discard(id(args[0]))  # now it holds data
        if not has_weight or func in HARMLESS:
            return func(*args, **kwargs)
        found = None if self.count in self.opaque else find(func, args, kwargs, lambda t: id(t) in self.sources)
        if found is not None and self._known_roles(tensors, found):
            return self._tapped(found, writes)
        if writes:  # and hides a weight in a tensor that lived before
            self.lost |= {n for t in tensors if id(t) in self.sources for n in self.sources[id(t)].names}
            return func(*args, **kwargs)
        if isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional":
            return self._inside(func, args, kwargs)
        return self._opaque(func, args, kwargs)

    def course(self, numbers: Sequence[int]) -> Course:
        """Of the pass, as far as these uses go."""
        known = [n for n in numbers if n in self.calls]
        kinds, shapes = tuple(self.calls[n].kind for n in known), tuple(self.shapes[n] for n in known)
        return Course(kinds, shapes, self.count, self.moved)

    def _depends_on_no_data(self, t: Any) -> bool:
        return id(t) in self.fixed or id(t) in self.sources

    def _inside(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        with self:  # it is made of operations that may have rules
            return opened(func)(*args, **kwargs)

    def _known_roles(self, tensors: Sequence[Tensor], found: tuple) -> bool:
        """Whether weights appear only where the rule expects them."""
        expected = {id(found[2]), id(found[3])}
        return all(id(t) in expected for t in tensors if id(t) in self.sources)

    def _constant(self, out: Any) -> Any:
        for t in tensors_in(out):
            self.fixed.add(id(t))
            self.alive.append(t)
        return out

    def _derived(self, func: Any, args: tuple, kwargs: Mapping[str, Any], out: Any) -> Any:
        several = isinstance(out, tuple | list)
        swap = lambda leaf: self.sources.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf  # noqa: E731
        own_args, own_kwargs = pytree.tree_map(swap, (args, dict(kwargs)))
        for i, t in enumerate(out if several else [out]):
            if isinstance(t, Tensor) and id(t) not in self.sources:
                self.sources[id(t)] = Source(
                    function=func, args=own_args, kwargs=own_kwargs, part=i if several else None
                )
                self.alive.append(t)
        return out

    def _tapped(self, found: tuple, in_place: bool) -> Tensor:
        rule, given, weight, bias, run = found
        own = [None if t is None else self.sources.get(id(t)) for t in (weight, bias)]
        size = sum(t.numel() for t, s in zip((weight, bias), own, strict=True) if t is not None and s is not None)
        return self._noted(Call(rule, own[0], own[1], size), given, run(), in_place)

    def _opaque(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Tap every output of an operation without a rule."""
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        places = tuple(i for i, t in enumerate(leaves) if isinstance(t, Tensor) and id(t) in self.sources)
        weight = Source(function=together, args=tuple(self.sources[id(leaves[i])] for i in places))
        size = sum(leaves[i].numel() for i in places)
        out = func(*args, **kwargs)
        parts, spec = pytree.tree_flatten(out)
        for i, t in enumerate(parts):
            if isinstance(t, Tensor) and t.is_floating_point():
                given = (args, dict(kwargs))
                parts[i] = self._noted(Call(Opaque(func, places, i), weight, None, size), given, t)
        return pytree.tree_unflatten(parts, spec)

    def _noted(self, call: Call, given: Any, out: Tensor, in_place: bool = False) -> Tensor:
        number, self.count = self.count, self.count + 1
        tap = self.tap(number, out)
        if tap is None:
            return out
        self.calls[number], self.inputs[number], self.shapes[number] = call, given, out.shape
        if not isinstance(tap, Tensor):
            return out
        return out.add_(tap) if in_place else out + tap


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place or func in WRITERS or (name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"))
    )


def _with_constant_statistics(args: tuple) -> tuple:
    """Arguments of `torch.batch_norm` with the batch's own statistics, held constant."""
    x, axes = args[0].detach(), [a for a in range(args[0].dim()) if a != 1]
    variance, mean = torch.var_mean(x, axes, correction=0)
    return (*args[:3], mean, variance, False, *args[6:])
