"""First and second moments of per-example gradients from one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.model import BayesianModel
from ..weights.algebra import Weights, under_vmap
from .diagonal import squares
from .eager import eagerly
from .outputs import bound_likelihood, unknown_scores
from .streaming import Stream, stream
from .tracing import Traced, trace


@dataclass(frozen=True)
class Moments:
    """Sums over the examples of a batch, by their weights wᵢ, with gᵢ = ∇ log p(yᵢ | xᵢ, w) in every unknown.

    Attributes:
        log_likelihood: Σ wᵢ log p(yᵢ | xᵢ, w).
        gradient: Σ wᵢ gᵢ.
        squares: Σ wᵢ gᵢ².
    """

    log_likelihood: Tensor
    gradient: Weights
    squares: Weights


@eagerly
def gradient_and_second_moments(
    model: BayesianModel, params: Mapping[str, Tensor], batch: Any, key: Tensor | None = None
) -> Moments:
    """The moments of every weight and of every unknown of the likelihood, at the cost of a gradient and its squares.

    Where examples meet in a batch norm the weights wᵢ must be equal; those of a batch that `fit` made are, unless the
    user's are not.

    Args:
        model: In the mode and precision that it is bound to.
        params: Where.
        batch: (inputs, targets, weights or None).
        key: For a network with dropout, in training.
    """
    inputs, targets, weights = batch
    passed = stream(model, params, inputs, key) or trace(model, params, inputs, key, learning=True)
    outputs = passed.outputs
    weights = outputs.new_ones(outputs.shape[:1]) if weights is None else weights.to(outputs.dtype)
    likelihood = bound_likelihood(model, params)
    value, column = _weighted_gradient(likelihood, outputs, targets, weights)
    scale = model.gradient_scale  # float16 has no room for whole-data slopes
    scaled = column if scale == 1.0 else column * scale
    if isinstance(passed, Stream):
        gradient, found = passed.moments(scaled, _shares(weights) / scale**2)
    else:
        slopes, gradient = passed.pull_all(scaled)
        found = _squares(passed, slopes, column, weights, scale)
    gradient = {k: g if scale == 1.0 else g / scale for k, g in gradient.items()}
    for name, scores in unknown_scores(model, params, outputs, targets).items():
        shape = params[name].shape
        gradient[name] = torch.stack([(weights * s).sum() for s in scores]).reshape(shape)
        found[name] = torch.stack([(weights * s * s).sum() for s in scores]).reshape(shape)
    return Moments(value, {k: gradient[k] for k in params}, {k: found[k] for k in params})


def _weighted_gradient(likelihood: Any, outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ wᵢ log p(yᵢ | fᵢ) and its gradient in the outputs."""

    def total(f: Tensor) -> Tensor:
        return (likelihood.log_prob(f, y) * weights).sum()

    if under_vmap():
        column, value = torch.func.grad_and_value(total)(outputs)
        return value, column
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = total(leaf)
        return value.detach(), torch.autograd.grad(value, leaf)[0]


def _squares(traced: Traced, slopes: list[Tensor], column: Tensor, weights: Tensor, scale: float) -> Weights:
    """Σ wᵢ gᵢ² from slopes that carry wᵢ, and the `scale`: each example's is divided by √wᵢ before it is squared."""
    factors = _shares(weights).sqrt()
    layouts = traced.plan.layouts
    own = [layout.times(s, factors / scale, in_front=1) for layout, s in zip(layouts, slopes, strict=True)]
    plain = column * factors.reshape(-1, *[1] * (column.dim() - 1))
    return squares(traced, plain.unsqueeze(0), slopes=own)


def _shares(weights: Tensor) -> Tensor:
    """1 / wᵢ, and nothing for an example that does not count."""
    return weights.reciprocal().masked_fill(weights == 0, 0.0)
