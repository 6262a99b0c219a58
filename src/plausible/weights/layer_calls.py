"""Change what layers do without touching the network: every operation that a weight takes part in passes a handler.

Weights are recognised by identity, so a module, a functional call, attention, a recurrent cell and a tied weight all
count alike. What is computed from weights alone (a transpose, a chunk of an attention's projection) is a weight, too.

    def handle(call):                                        # double the input of every linear map
        return call.run(input=2 * call.input) if call.kind == "linear" else call.run()

    with LayerCalls(weights, handle):
        functional_call(module, weights, (x,))

It is a `TorchFunctionMode`, and works eagerly, under `vmap` and under `torch.func.grad`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

Remake = Callable[[Mapping[str, Tensor]], Any]  # a weight, made from others of the same names

LINEAR, CONVOLUTION, RECURRENT, EMBEDDING, OTHER = "linear", "convolution", "recurrent", "embedding", "other"
_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_SEQUENCES = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
# Functions that take a weight only to read its type, place or shape.
_HARMLESS = (torch.Tensor.type_as, torch.Tensor.expand_as, torch.Tensor.view_as, torch.Tensor.reshape_as)


@dataclass(frozen=True)
class LayerCall:
    """One operation that weights meet data in.

    Attributes:
        kind: "linear" (also `x @ w` and `addmm`), "convolution" (also transposed), "recurrent", "embedding" or "other".
        name: Of the weight, or of the first that it is made of.
        input: What the weight is multiplied with; of an "embedding" the indices, of an "other" None. A recurrent cell
            is two calls, one inside the other: of the input with `weight_ih`, of the hidden state with `weight_hh`. A
            whole recurrent layer is one, of its input with the first `weight_ih`.
        weight: The weight as it is used: a view of the named one, perhaps. Of an "other" None.
        bias: The bias as it is used, if there is one.
        names: All weights that take part.
        transposed: Whether outputs are the weight's second axis: `x @ w`, and transposed convolutions.
        channels: Which axis of a convolution's output the channels are, counted from the end.
    """

    kind: str
    name: str
    input: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    names: tuple[str, ...]
    _run: Callable[..., Any] = field(repr=False)
    _remakes: tuple[Remake | None, Remake | None] = field(default=(None, None), repr=False)
    transposed: bool = False
    channels: int = -1

    def run(self, **changed: Any) -> Any:
        """The operation itself, with another `input=`, `weight=` or `bias=` where one is given.

        "other" takes `weights=` alone, a mapping from names to the tensors to use instead; "recurrent" takes that and
        an `input=`.
        """
        return self._run(**changed)

    def weight_from(self, others: Mapping[str, Tensor]) -> Tensor | None:
        """What `weight` would be if the named weights were `others`: scales or draws of them, cut up the same way."""
        return None if self._remakes[0] is None else self._remakes[0](others)

    def bias_from(self, others: Mapping[str, Tensor]) -> Tensor | None:
        """Likewise for `bias`; None if there is none, or none of the named ones."""
        return None if self._remakes[1] is None else self._remakes[1](others)


@dataclass(frozen=True)
class _Source:
    names: tuple[str, ...]
    remake: Remake


class LayerCalls(TorchFunctionMode):
    """Hands every operation of a pass that a weight takes part in to `handle`, whose answer is used as its output.

    Args:
        weights: The tensors that the network is called with, by name.
        handle: Called with a `LayerCall`. What it does itself is not watched.
        dropouts: Called with (input, rate, function) for every dropout by a function or a layer, in training or not.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        handle: Callable[[LayerCall], Any],
        dropouts: Callable[[Tensor, float, Any], Tensor] | None = None,
    ):
        super().__init__()
        self.handle, self.dropouts = handle, dropouts
        self._sources = {id(w): _Source((k,), functools.partial(_pick, k)) for k, w in weights.items()}
        self._alive: list[Any] = [dict(weights)]  # an id means something as long as its tensor lives

    def __torch_function__(self, func: Any, types_: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Sort the operation out."""
        kwargs = kwargs or {}
        if self.dropouts is not None and func in _DROPOUTS:
            return self.dropouts(args[0], float(_argument(args, kwargs, 1, "p", 0.5)), func)
        tensors = list(tensors_in((args, kwargs)))
        own = [s for s in (self._sources.get(id(t)) for t in tensors) if s is not None]
        if not own or func in _HARMLESS:
            return func(*args, **kwargs)
        if len(own) == len(tensors):
            return self._derived(func, args, kwargs, own)
        call = self._read(func, args, kwargs)
        if call is not None:
            return self.handle(call)
        if isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional":
            with self:  # it is made of operations that may be known
                return opened(func)(*args, **kwargs)
        return self.handle(self._other(func, args, kwargs, own))

    def _derived(self, func: Any, args: tuple, kwargs: dict[str, Any], own: list[_Source]) -> Any:
        """What is made of weights alone is a weight."""
        out = func(*args, **kwargs)
        several = isinstance(out, tuple | list)
        for i, t in enumerate(out if several else [out]):
            if isinstance(t, Tensor) and id(t) not in self._sources:
                remake = functools.partial(self._again, func, args, kwargs, i if several else None)
                self._sources[id(t)] = _Source(_joined(own), remake)
                self._alive.append(t)
        return out

    def _again(
        self, func: Any, args: tuple, kwargs: dict[str, Any], part: int | None, others: Mapping[str, Tensor]
    ) -> Any:
        args, kwargs = self._swapped((args, kwargs), others)
        out = func(*args, **kwargs)
        return out if part is None else out[part]

    def _swapped(self, given: Any, others: Mapping[str, Tensor]) -> Any:
        """Arguments with every weight made from `others`."""
        if isinstance(given, Tensor):
            source = self._sources.get(id(given))
            return given if source is None else source.remake(others)
        if isinstance(given, tuple | list):
            return type(given)(self._swapped(g, others) for g in given)
        return {k: self._swapped(g, others) for k, g in given.items()} if isinstance(given, dict) else given

    def _other(self, func: Any, args: tuple, kwargs: dict[str, Any], own: list[_Source]) -> LayerCall:
        def run(weights: Mapping[str, Tensor] | None = None) -> Any:
            own_args, own_kwargs = (args, kwargs) if weights is None else self._swapped((args, kwargs), weights)
            return func(*own_args, **own_kwargs)

        names = _joined(own)
        return LayerCall(OTHER, names[0], None, None, None, names, run)

    def _read(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> LayerCall | None:
        if func is F.linear:
            x, w, b = (_argument(args, kwargs, i, k) for i, k in enumerate(("input", "weight", "bias")))
            return self._layer(LINEAR, x, w, b, lambda x, w, b: func(x, w, b))
        if func in _MATMULS and len(args) == 2 and not kwargs and args[1].dim() == 2:
            return self._layer(LINEAR, args[0], args[1], None, lambda x, w, b: _plus(func(x, w), b), transposed=True)
        if func is torch.addmm and len(args) == 3 and not kwargs and args[0].dim() == 1:
            return self._layer(LINEAR, args[1], args[2], args[0], lambda x, w, b: _affine(x, w, b), transposed=True)
        if func in _CONVOLUTIONS or func in _TRANSPOSED:
            x, w, b = (_argument(args, kwargs, i, k) for i, k in enumerate(("input", "weight", "bias")))
            rest, named = args[3:], {k: v for k, v in kwargs.items() if k not in ("input", "weight", "bias")}
            run = lambda x, w, b: func(x, w, b, *rest, **named)  # noqa: E731
            return self._layer(CONVOLUTION, x, w, b, run, func in _TRANSPOSED, 1 - w.dim())
        if func is F.embedding and len(args) >= 2:
            return self._layer(EMBEDDING, args[0], args[1], None, lambda x, w, b: func(x, w, *args[2:], **kwargs))
        if func in _SEQUENCES:
            first = next(tensors_in(self._owned(args[1:])), None)
            return self._recurrent(args[0], first, args, lambda x, given: func(x, *given[1:], **kwargs))
        if func in _CELLS:
            return self._recurrent(args[0], args[2], args, lambda x, given: self._cell(func, x, given, kwargs))
        return None

    def _owned(self, args: tuple) -> list[Tensor]:
        return [t for t in tensors_in(args) if id(t) in self._sources]

    def _layer(
        self,
        kind: str,
        x: Any,
        w: Any,
        b: Any,
        run: Callable[[Any, Any, Any], Any],
        transposed: bool = False,
        channels: int = -1,
    ) -> LayerCall | None:
        source, bias = self._sources.get(id(w)), self._sources.get(id(b))
        if source is None or id(x) in self._sources:
            return None  # a weight, but in another role
        names = _joined([source] if bias is None else [source, bias])
        remakes = (source.remake, None if bias is None else bias.remake)

        def changed(input: Any = x, weight: Any = w, bias: Any = b) -> Any:  # noqa: A002 - as torch names it
            return run(input, weight, bias)

        return LayerCall(kind, source.names[0], x, w, b, names, changed, remakes, transposed, channels)

    def _recurrent(self, x: Any, first: Any, args: tuple, run: Callable[[Any, tuple], Any]) -> LayerCall | None:
        if self._sources.get(id(first)) is None or id(x) in self._sources:
            return None

        def changed(input: Any = x, weights: Mapping[str, Tensor] | None = None) -> Any:  # noqa: A002
            return run(input, args if weights is None else self._swapped(args, weights))

        source = self._sources[id(first)]
        names = _joined([source, *(self._sources[id(t)] for t in self._owned(args))])
        return LayerCall(RECURRENT, source.names[0], x, first, None, names, changed, (source.remake, None))

    def _cell(self, func: Any, x: Any, given: tuple, kwargs: dict[str, Any]) -> Any:
        """The hidden state's half of a cell's call, whose input is settled."""
        _, state, into, back, *biases = given
        several = isinstance(state, tuple | list)

        def run(hidden: Any, own: tuple) -> Any:
            return func(x, (hidden, *own[1][1:]) if several else hidden, *own[2:], **kwargs)

        hidden = state[0] if several else state
        inner = self._recurrent(hidden, back, given, run)
        return run(hidden, given) if inner is None else self.handle(inner)


_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout),
)


def _pick(name: str, others: Mapping[str, Tensor]) -> Tensor:
    return others[name]


def _plus(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else out + bias


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def _joined(sources: list[_Source]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for s in sources for n in s.names))


def _argument(args: tuple, kwargs: Mapping[str, Any], place: int, name: str, default: Any = None) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors in arguments; `pytree` does the same in many times the time."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for entry in tree:
            yield from tensors_in(entry)
    elif isinstance(tree, dict):
        for entry in tree.values():
            yield from tensors_in(entry)


@functools.cache
def opened(function: types.FunctionType) -> types.FunctionType:
    """The same function, which otherwise hands itself over as a whole, with its inside open to view."""
    closed = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    clone = types.FunctionType(
        function.__code__, {**function.__globals__, **closed}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone
