"""Per-example gradients and Gauss-Newton matrices by plain autograd, one example after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree


def outputs_of(network: nn.Module, weights: Mapping[str, Tensor], inputs: Any) -> Tensor:
    """As the library's users call a network."""
    if isinstance(inputs, dict):
        return functional_call(network, dict(weights), (), inputs)
    return functional_call(network, dict(weights), inputs if isinstance(inputs, tuple) else (inputs,))


def row(inputs: Any, i: int) -> Any:
    return pytree.tree_map(lambda t: t[i : i + 1], inputs)


def gradients_of_each(network: nn.Module, likelihood: Any, inputs: Any, y: Tensor) -> dict[str, Tensor]:
    """(N, shape): every example's log likelihood, differentiated in its own copy of the weights."""
    rows = []
    for i in range(len(y)):
        own = {k: p.detach().clone().requires_grad_() for k, p in network.named_parameters()}
        value = likelihood.log_prob(outputs_of(network, own, row(inputs, i)), y[i : i + 1]).sum()
        rows.append(torch.autograd.grad(value, list(own.values()), allow_unused=True, materialize_grads=True))
    names = [k for k, _ in network.named_parameters()]
    return {k: torch.stack(g) for k, *g in zip(names, *rows, strict=True)}


def jacobians(network: nn.Module, inputs: Any, count: int) -> Tensor:
    """(N, K, P): the derivative of every output of every example, weights laid flat in the order of the module."""
    found = []
    for i in range(count):
        own = {k: p.detach().clone().requires_grad_() for k, p in network.named_parameters()}
        out = outputs_of(network, own, row(inputs, i)).flatten()
        rows = [
            torch.autograd.grad(o, list(own.values()), retain_graph=True, allow_unused=True, materialize_grads=True)
            for o in out
        ]
        found.append(torch.stack([torch.cat([g.flatten() for g in r]) for r in rows]))
    return torch.stack(found)


def output_hessians(likelihood: Any, outputs: Tensor, y: Tensor) -> Tensor:
    """(N, K, K): −∂² log p / ∂f², by autograd, without clipping."""
    found = []
    for i in range(len(y)):

        def negative(flat: Tensor, i: int = i) -> Tensor:
            return -likelihood.log_prob(flat.reshape(1, *outputs.shape[1:]), y[i : i + 1]).sum()

        found.append(torch.autograd.functional.hessian(negative, outputs[i].flatten()))
    return torch.stack(found)


def flat(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([w.flatten() for w in weights.values()])


def gap(found: Tensor, truth: Tensor) -> float:
    """The largest difference, beside the largest entry of the truth."""
    assert found.shape == truth.shape, (tuple(found.shape), tuple(truth.shape))
    scale = float(truth.abs().max())
    difference = float((found - truth).abs().max())
    return difference / scale if scale else difference
