"""Arithmetic on dictionaries of weights.

On one set of weights the multi-tensor kernels of `torch._foreach_*` do a whole dictionary in a few launches. Under
`vmap` they have no batching rule, and there the dictionary is walked tensor by tensor with operations that do have
one (`lerp_`, `addcmul_` and `addcdiv_` have none and would fall back to a loop over modes).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Number = float | Tensor


def under_vmap() -> bool:
    """Whether a functorch transform is running, in which case tensors are not plain memory."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.maybe_current_level() is not None


@contextlib.contextmanager
def slow_vmap_is_an_error() -> Iterator[None]:
    """Where a kernel has no batching rule, `vmap` warns and loops over it, which costs more than a loop around it all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop", category=UserWarning)
        yield


def add_(target: Weights, other: Mapping[str, Tensor], scale: Number = 1.0) -> Weights:
    """target ← target + scale · other, in place."""
    if under_vmap():
        for k, t in target.items():
            t += other[k] * scale
        return target
    tensors, others = list(target.values()), [other[k] for k in target]
    if isinstance(scale, Tensor):
        torch._foreach_add_(tensors, torch._foreach_mul(others, _matching(scale, others)))
    else:
        torch._foreach_add_(tensors, others, alpha=scale)
    return target


def scale_(target: Weights, factor: Number) -> Weights:
    """target ← factor · target, in place."""
    if under_vmap():
        for t in target.values():
            t *= factor
        return target
    tensors = list(target.values())
    torch._foreach_mul_(tensors, _matching(factor, tensors))
    return target


def _matching(factor: Number, tensors: list[Tensor]) -> Number:
    """A number in the precision it will be used in; beside any other the multi-tensor kernels go tensor by tensor."""
    if not isinstance(factor, Tensor) or any(t.dtype != tensors[0].dtype for t in tensors):
        return factor
    return factor.to(tensors[0].dtype)


def wide_zeros(like: Tensor) -> Tensor:
    """Zeros of the same shape, in float32 at least: little by little, nothing can be added up in half precision."""
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32), requires_grad=False)


def like(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Weights:
    """The others in the types of the weights of their names."""
    return {k: v.to(weights[k].dtype) for k, v in others.items()}


def average_(mean: Weights, value: Mapping[str, Tensor], decay: float) -> Weights:
    """mean ← decay · mean + (1 − decay) · value, in place."""
    return add_(scale_(mean, decay), value, 1.0 - decay)


def square(weights: Mapping[str, Tensor]) -> Weights:
    """Elementwise squares."""
    if under_vmap():
        return {k: w * w for k, w in weights.items()}
    values = list(weights.values())
    return dict(zip(weights, torch._foreach_mul(values, values), strict=True))


def add_quotient_(target: Weights, top: Mapping[str, Tensor], bottom: Mapping[str, Tensor], scale: Number) -> Weights:
    """target ← target + scale · top / bottom, in place."""
    if under_vmap():
        for k, t in target.items():
            t += scale * top[k] / bottom[k]
        return target
    quotient = torch._foreach_div([top[k] for k in target], [bottom[k] for k in target])
    return add_(target, dict(zip(target, quotient, strict=True)), scale)


def root(weights: Mapping[str, Tensor], divisor: Number = 1.0, offset: float = 0.0) -> Weights:
    """√(weights / divisor) + offset."""
    if under_vmap():
        return {k: (w / divisor).sqrt() + offset for k, w in weights.items()}
    roots = torch._foreach_div(list(weights.values()), divisor)
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, offset)
    return dict(zip(weights, roots, strict=True))


def can_fuse(weights: Mapping[str, Tensor]) -> bool:
    """Whether one of torch's fused kernels may take these tensors: plain memory of one floating-point type."""
    if under_vmap() or len({(w.dtype, w.device) for w in weights.values()}) != 1:
        return False
    first = next(iter(weights.values()))
    return first.device.type == "cpu" or first.dtype != torch.float64  # a GPU's kernel reads the rate in float32


def fused_adam_(
    state: Mapping[str, Weights],
    uphill: Mapping[str, Tensor],
    rate: Tensor,
    count: Tensor,
    beta: float,
    beta2: float,
    offset: float,
) -> None:
    """Adam's update of state["params"], ["first"] and ["second"] along `uphill` in one pass over memory, in place."""
    params = list(state["params"].values())
    # A convolution's slope has its images' layout, and the kernel walks all tensors of a weight by one.
    pairs = [(w, uphill[k]) for k, w in state["params"].items()]
    slopes = [g if g.stride() == w.stride() else torch.empty_like(w).copy_(g) for w, g in pairs]
    torch._fused_adam_(
        params,
        slopes,
        [state["first"][k] for k in state["params"]],
        [state["second"][k] for k in state["params"]],
        [],
        [count.to(torch.float32)] * len(params),
        lr=-(rate if params[0].device.type == "cpu" else rate.float()),
        beta1=beta,
        beta2=beta2,
        weight_decay=0.0,
        eps=offset,
        amsgrad=False,
        maximize=False,  # which would store the moments of the negative gradient; a negative rate climbs as well
    )


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Inner product over all tensors."""
    return sum((a[k] * b[k]).sum() for k in a)  # type: ignore[return-value]


def norm(weights: Mapping[str, Tensor]) -> Tensor:
    """Euclidean norm over all tensors."""
    return dot(weights, weights).sqrt()


def size(weights: Mapping[str, Tensor]) -> int:
    """Number of scalars."""
    return sum(w.numel() for w in weights.values())


def to_vector(weights: Mapping[str, Tensor], leading: int = 0) -> Tensor:
    """One vector (as `torch.nn.utils.parameters_to_vector` orders it); the first `leading` axes are kept."""
    if leading == 0 and len(weights) > 1 and not under_vmap():  # of a lone tensor it would be a view
        return torch._C._nn.flatten_dense_tensors(list(weights.values()))
    return torch.cat([w.flatten(leading) if w.dim() > leading else w.unsqueeze(-1) for w in weights.values()], dim=-1)


def from_vector(vector: Tensor, like: Mapping[str, Tensor]) -> Weights:
    """Take a vector (..., P) apart into tensors (..., *shape), in the names, shapes and dtypes of `like`."""
    if vector.dim() == 1 and len(vector) == size(like) and not under_vmap():
        parts = torch._C._nn.unflatten_dense_tensors(vector, list(like.values()))
        return {k: p if p.dtype == w.dtype else p.to(w.dtype) for (k, w), p in zip(like.items(), parts, strict=True)}
    parts = vector.split([w.numel() for w in like.values()], dim=-1)
    return {
        k: p.reshape((*vector.shape[:-1], *w.shape)).to(w.dtype) for (k, w), p in zip(like.items(), parts, strict=True)
    }
