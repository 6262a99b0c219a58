"""Products of the generalised Gauss-Newton matrix with vectors, without the matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.linearised import kernels_with_derivatives
from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from .eager import eagerly
from .outputs import bound_likelihood, hessian_product
from .tracing import Traced, trace


@eagerly
def gauss_newton_product(
    model: BayesianModel,
    params: Mapping[str, Tensor],
    batch: Any,
    vector: Mapping[str, Tensor],
    key: Tensor | None = None,
) -> Weights:
    """Σᵢ wᵢ Jᵢᵀ Hᵢ Jᵢ v for the weights named in `vector`; Hᵢ as in `outputs`.

    J is the Jacobian of the network's outputs in the mode that the model is bound to, so in eval mode the product is
    that with `Curvature.dense`.
    """
    inputs, targets, weights = batch
    own, rest = {k: params[k] for k in vector}, {k: v for k, v in params.items() if k not in vector}
    likelihood = bound_likelihood(model, params)

    def run(some: Weights) -> Tensor:
        return model.outputs({**rest, **some}, inputs, key)

    def curved(outputs: Tensor, along: Tensor) -> Tensor:
        found = hessian_product(likelihood, outputs, targets, along)
        return found if weights is None else found * weights.reshape(-1, *[1] * (found.dim() - 1)).to(found.dtype)

    with kernels_with_derivatives():
        if under_vmap():
            return _transformed(run, curved, own, vector)
        try:
            return _by_autograd(run, curved, own, vector)
        except RuntimeError:  # an operation that is differentiable but once
            traced = trace(model, params, inputs, key, tuple(vector))
    column = curved(traced.outputs, _by_example(traced, vector)).unsqueeze(0)
    each = traced.gradients(traced.pull(column), column, traced.names, 0, traced.examples)
    return {k: each[k].sum((0, 1)) for k in vector}


# Forward mode would be as cheap, but some operations lack it, and an embedding's padding, which a gradient leaves alone,
# has a forward derivative. J v is also the derivative in u of (Jᵀ u) · v.


def _by_autograd(
    run: Callable[[Weights], Tensor],
    curved: Callable[[Tensor, Tensor], Tensor],
    own: Mapping[str, Tensor],
    vector: Mapping[str, Tensor],
) -> Weights:
    leaves = {k: w.detach().requires_grad_() for k, w in own.items()}
    options: Any = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers go back only once
        outputs = run(leaves)
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, list(leaves.values()), u, create_graph=True, **options)
        used = [(k, p) for k, p in zip(leaves, pulled, strict=True) if p.requires_grad]
        (along,) = torch.autograd.grad([p for _, p in used], u, [vector[k] for k, _ in used], **options)
        slopes = torch.autograd.grad(outputs, list(leaves.values()), curved(outputs.detach(), along), **options)
    return dict(zip(leaves, slopes, strict=True))


def _transformed(
    run: Callable[[Weights], Tensor],
    curved: Callable[[Tensor, Tensor], Tensor],
    own: Mapping[str, Tensor],
    vector: Mapping[str, Tensor],
) -> Weights:
    """The same inside `vmap`."""
    pair: Any = torch.func.vjp(run, dict(own))
    outputs, back = pair
    (along,) = torch.func.vjp(lambda u: back(u)[0], torch.zeros_like(outputs))[1](dict(vector))
    return back(curved(outputs, along))[0]


def _by_example(traced: Traced, vector: Mapping[str, Tensor]) -> Tensor:
    """J v, an output at a time: its gradient at every example, times v."""
    outputs = traced.outputs
    width = outputs[0].numel()
    found = []
    for unit in torch.eye(width, dtype=outputs.dtype, device=outputs.device):
        column = unit.reshape(1, 1, *outputs.shape[1:]).expand(1, *outputs.shape)
        each = traced.gradients(traced.pull(column), column, traced.names, 0, traced.examples)
        found.append(
            torch.stack([(each[k][0] * v).reshape(traced.examples, -1).sum(1) for k, v in vector.items()]).sum(0)
        )
    return torch.stack(found, 1).reshape(outputs.shape)
