"""Moments of per-example gradients, taken while the backward pass runs.

The gradient of an output is used the moment it arrives and then let go, as are the inputs that were recorded, so a pass
takes little more memory than a plain one. Weights are constants to autograd: their own gradients, too, are sums over
examples that come with the squares.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from .fused import norms as fused_norms
from .passes import Plan, known
from .recording import Call, Recorder
from .rules.norms import Norm
from .rules.opaque import Opaque
from .tracing import plan_for


def stream(model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None = None) -> Stream | None:
    """A forward pass on a GPU of a network whose weights are each used once and as they are; None for others."""
    like = next(iter(params.values()))
    if like.device.type != "cuda" or under_vmap():
        return None
    plan = plan_for(model, params, inputs, tuple(model.weight_names))
    if not streams(plan, model.weight_names):
        return None
    found = Stream(model, params, inputs, key, plan)
    if found.as_planned:
        return found
    found.forget()
    return None


def streams(plan: Plan, names: list[str]) -> bool:
    """Whether every weight has a rule and one use."""
    plain = not plan.fallback and not plan.opaque and not any(isinstance(c.rule, Opaque) for c in plan.calls)
    return plain and all(plan.direct(n) is not None for n in names)


class Stream:
    """One forward pass, and the backward pass that it can be pulled through once.

    Attributes:
        outputs: The network's.
        as_planned: Whether the network used its weights as it did when the plan was made.
    """

    def __init__(self, model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None, plan: Plan):
        self.params = {k: v.detach() for k, v in params.items()}
        self.plan, self.names = plan, tuple(model.weight_names)
        self.leaves: dict[int, Tensor] = {}  # outputs of first layers, which nothing before them makes part of a graph
        self.found: dict[str, Any] = {}  # Σ gᵢ and Σ fᵢ gᵢ², two tensors or one
        self.factors: Any = None
        self._layouts = dict(zip(plan.numbers, plan.layouts, strict=True))
        self.recorder: Any = _Watcher(*known(model, self.params, self.names, key), self._tap)
        with torch.enable_grad(), self.recorder:
            self._graph: Any = model.outputs(self.params, inputs, key)
        self.outputs = self._graph.detach()
        self.as_planned = plan.followed_by(self.recorder.course(plan.numbers), len(self.outputs), self.names)

    def moments(self, column: Tensor, factors: Tensor) -> tuple[Weights, Weights]:
        """Σ gᵢ and Σ fᵢ gᵢ² of every weight, where the gᵢ are what a column (N, outputs...) pulls back to.

        Args:
            column: A gradient in the outputs.
            factors: (N,), the fᵢ.
        """
        self.factors, graph, self._graph = factors, self._graph, None
        if graph.requires_grad:
            slopes = torch.autograd.grad(graph, list(self.leaves.values()), column, allow_unused=True)
            for number, slope in zip(self.leaves, slopes, strict=True):
                if slope is not None:
                    self._use(number, slope)
        pairs = {n: self.found[n] if n in self.found else w.new_zeros((2, *w.shape)) for n, w in self._own()}
        sums, squares = ({n: pairs[n][i].to(w.dtype) for n, w in self._own()} for i in (0, 1))
        self.forget()
        return sums, squares

    def _own(self) -> list[tuple[str, Tensor]]:
        return [(n, self.params[n]) for n in self.names]

    def forget(self) -> None:
        """The recorder knows the stream and the stream the recorder: let go of tensors now, not when cycles are looked for."""
        self.recorder, self.params, self.found, self.leaves = None, {}, {}, {}
        self.factors = self._graph = None

    def _tap(self, number: int, out: Tensor) -> Tensor | bool | None:
        if number not in self._layouts:
            return None
        if out.requires_grad:
            out.register_hook(functools.partial(self._use, number))
            return True
        self.leaves[number] = torch.zeros((), dtype=out.dtype, device=out.device).expand(out.shape).requires_grad_()
        return self.leaves[number]

    def _use(self, number: int, slope: Tensor) -> None:
        """Take what the gradient of an output says of the weights that meet there."""
        call, given, layout = self.recorder.calls[number], self.recorder.inputs.pop(number), self._layouts[number]
        examples, factors = self.outputs.shape[0], self.factors
        with torch.no_grad():
            column = slope.detach().unsqueeze(0)
            if isinstance(given, Normalised) and fused_norms.usable(given.image, slope, layout):
                pairs = fused_norms.moments(given.image, given.mean, given.inverse, slope.detach(), factors)
            else:
                given = given.value() if isinstance(given, Normalised) else given
                given = None if given is None else given.detach()
                wanted = (call.weight is not None, call.bias is not None)
                pairs = call.rule.moments(given, column, factors, layout, examples, *wanted)
            for source, pair in zip((call.weight, call.bias), pairs, strict=True):
                if source is not None:
                    self.found[_name(source)] = pair


class Normalised:
    """The input of a batch norm, and what makes its normalised values; they need not be stored."""

    def __init__(self, image: Tensor, mean: Tensor, inverse: Tensor):
        self.image, self.mean, self.inverse = image.detach(), mean.detach(), inverse.detach()

    def value(self) -> Tensor:
        """(N, channels, places...)."""
        shape = (1, -1, *[1] * (self.image.dim() - 2))
        return (self.image.to(self.mean.dtype) - self.mean.reshape(shape)) * self.inverse.reshape(shape)


class _Watcher(Recorder):
    """Leaves batch norms in training in one piece; other passes run them without weights first, and keep the result."""

    def __torch_function__(self, func: Any, types_: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func is torch.batch_norm and not kwargs and args[5]:
            weight, bias = (self.sources.get(id(t)) if isinstance(t, Tensor) else None for t in args[1:3])
            if weight is not None and bias is not None and id(args[0]) not in self.sources:
                out, mean, inverse = torch._batch_norm_impl_index(*args)[:3]
                size = args[1].numel() + args[2].numel()
                return self._noted(Call(Norm(0), weight, bias, size), Normalised(args[0], mean, inverse), out)
        return super().__torch_function__(func, types_, args, kwargs)


def _name(source: Any) -> str:
    """Of a weight that is used as it is."""
    assert source.name is not None
    return source.name
