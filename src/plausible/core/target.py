"""What a method climbs or samples: a log density of a dictionary of unconstrained tensors, and its slope.

`slope` is the one place where anything is differentiated. A lone set of weights takes a plain `autograd.grad`. Inside
`vmap` the call escapes to the stacked weights of all modes, so that autograd runs once, outside `vmap`, which costs
half of a gradient inside it. Inside a compiled step it is traced as `torch.func.grad`, the form a compiler can read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..weights.algebra import Weights, under_vmap
from ..weights.rng import Keys
from ..weights.twin import twin
from .chunks import Chunks

Batch = Any  # (inputs, targets, weights) inside; see `batch.py` for what users may bring.


class Target(ABC):
    """A log joint density on the whole-data scale."""

    num_data: float | None = None  # N, bound by `fit`: the scale on which `log_joint` is.
    num_steps: int = 1  # bound by `fit`: schedules are functions of step / num_steps
    steps_per_epoch: int = 1  # bound by `fit`: how many batches the data are
    rng: Keys | None = None  # bound by `fit` for every step: where a network's dropout draws from
    inline: bool = False  # bound by `fit`: the caller is being compiled
    example: Any = (
        None  # bound by `fit`: a few inputs, for methods whose state depends on how a network uses its weights
    )
    prior_counted: bool = (
        False  # bound for all chunks of the data but the first: the objective is of the likelihood alone
    )

    @property
    @abstractmethod
    def start(self) -> Weights:
        """Unconstrained values where a run starts; names, shapes and dtypes of all unknowns."""

    @abstractmethod
    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """The part of the log joint that autograd differentiates, for a batch whose weights sum to N."""

    def add_remainder(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """Add the part of the log joint whose slope has a formula; may write into `slopes`."""
        return value, slopes

    @abstractmethod
    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values of the unconstrained `params`."""

    def bound(self, **fields: Any) -> Self:
        """A shallow copy with some of its fields set: how `fit` says N, the step's keys and the like."""
        new = twin(self)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    @property
    def gradient_scale(self) -> float:
        """What the objective is multiplied by while it is differentiated (and its slope divided by)."""
        return 1.0

    def place_constants(self, device: torch.device) -> None:  # noqa: B027 - nothing to place is the common case
        """Make the tensors that every step shares, so that no step makes one from a Python number."""

    @property
    def needs_key(self) -> bool:
        """Whether the objective draws random numbers."""
        return False

    def slope(self, params: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Weights]:
        """The log joint and its gradient in every unknown."""
        chunks = _chunks(batch)
        value, slopes = self._slope_of_objective(params, next(chunks))
        for chunk in chunks:
            more, steeper = self.bound(prior_counted=True)._slope_of_objective(params, chunk)
            value, slopes = value + more, {k: s.add_(steeper[k]) for k, s in slopes.items()}
        return self.add_remainder(value, params, slopes)

    def likelihood_slope(self, params: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Weights]:
        """The log likelihood of one batch of the loop over T, and its gradient, for callers that add the prior themselves."""
        return self.bound(prior_counted=True)._slope_of_objective(params, batch)

    def value(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The log joint alone, for a batch of the loop, at the price of a pass without its backward."""
        chunks = _chunks(batch)
        value = self.objective(params, next(chunks), None)
        for chunk in chunks:
            value = value + self.bound(prior_counted=True).objective(params, chunk, None)
        zeros = {k: torch.zeros_like(p) for k, p in params.items()}
        return self.add_remainder(value, params, zeros)[0]

    def _slope_of_objective(self, params: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Weights]:
        key = self.rng.key() if self.needs_key and self.rng is not None else None
        if self.inline:
            return self._traced(dict(params), batch, key)
        if under_vmap():
            flat, spec = pytree.tree_flatten((dict(params), batch, key))
            value, *rest = _Escape.apply(self, spec, *flat)
            return value, dict(zip(params, rest, strict=True))
        return self._direct(self.objective, params, batch, key)

    def _traced(self, params: Weights, batch: Batch, key: Tensor | None) -> tuple[Tensor, Weights]:
        scale = self.gradient_scale
        if scale == 1.0:
            slopes, value = torch.func.grad_and_value(self.objective)(params, batch, key)
            return value, {k: s.clone() for k, s in slopes.items()}  # as below; a compiler makes nothing of it
        slopes, value = torch.func.grad_and_value(lambda p: self.objective(p, batch, key) * scale)(params)
        return value / scale, {k: s / scale for k, s in slopes.items()}

    def _direct(
        self, objective: Callable[..., Tensor], params: Mapping[str, Tensor], *rest: Any
    ) -> tuple[Tensor, Weights]:
        leaves = {k: p.detach().requires_grad_() for k, p in params.items()}
        scale = self.gradient_scale
        with torch.enable_grad():
            value = objective(leaves, *rest)
            # Modes do not meet, so the gradient of their sum is each one's own.
            total = value.sum() if value.dim() else value
            total = total if scale == 1.0 else total * scale
            slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        if scale != 1.0:
            slopes = tuple(s / scale for s in slopes)
        return value.detach(), dict(zip(params, _in_memory_of_their_own(slopes), strict=True))

    def _stacked(self, args: tuple, dims: tuple) -> tuple[Tensor, Weights]:
        return self._direct(torch.vmap(self.objective, in_dims=dims, randomness="error"), *args)


def _chunks(batch: Batch) -> Iterator[Batch]:
    return iter(batch) if isinstance(batch, Chunks) else iter((batch,))


def _in_memory_of_their_own(slopes: Sequence[Tensor]) -> list[Tensor]:
    """Autograd gives a + b one tensor for both slopes, and a sum an expanded one; but slopes are written into."""
    seen: set[int] = set()
    own = []
    for s in slopes:
        shared = s.data_ptr() in seen or any(
            step == 0 and length > 1 for step, length in zip(s.stride(), s.shape, strict=True)
        )
        own.append(s.clone() if shared else s)
        seen.add(s.data_ptr())
    return own


class _Escape(torch.autograd.Function):
    """Leaves `vmap`: its rule is handed the stacked tensors of all modes and differentiates them together."""

    generate_vmap_rule = False

    @staticmethod
    def forward(target, spec, *flat):
        params, batch, key = pytree.tree_unflatten(list(flat), spec)
        value, slopes = target._direct(target.objective, params, batch, key)
        return value, *slopes.values()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, target, spec, *flat):
        dims = in_dims[2:]
        stacked = [t if d is None else t.movedim(d, 0) for t, d in zip(flat, dims, strict=True)]
        params, batch, key = pytree.tree_unflatten(stacked, spec)
        dims = pytree.tree_unflatten([None if d is None else 0 for d in dims], spec)
        params = {k: p if dims[0][k] == 0 else p.expand(info.batch_size, *p.shape) for k, p in params.items()}
        dims = (dict.fromkeys(params, 0), *dims[1:])
        value, slopes = target._stacked((params, batch, key), dims)
        return (value, *slopes.values()), (0,) * (1 + len(slopes))
