"""What methods ask for. All are sums over the examples of a batch, by their weights, so batches and processes can add.

The three kinds of curvature differ in the columns that are pulled back through the network:

    "ggn"               a root of the Hessian of −log p in the outputs (the Fisher information where that is not convex)
    "mc-fisher"         gradients at targets drawn from the likelihood: the same in expectation, one column for any width
    "empirical-fisher"  gradients at the data's own targets
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.model import BayesianModel
from ..weights.algebra import Weights
from ..weights.rng import Keys
from . import dense as dense_
from . import diagonal as diagonal_
from . import kronecker as kronecker_
from .eager import eagerly
from .outputs import (
    bound_likelihood,
    empirical_unknown_curvature,
    gradient,
    roots,
    sampled_root,
    unknown_curvature,
)
from .tracing import Traced, column_block, trace

KINDS = ("ggn", "mc-fisher", "empirical-fisher")


class Curvature:
    """The curvature of one batch: a forward pass, and what can be made of it.

    Args:
        model: In the mode and precision that it is bound to.
        params: Where.
        batch: (inputs, targets, weights or None).
        kind: One of three.
        rng: For "mc-fisher".
        names: Weights whose curvature is wanted; None takes all.
        key: For a network with dropout, in training.
    """

    @eagerly
    def __init__(
        self, model: BayesianModel, params: Mapping[str, Tensor], batch: Any, kind: str = "ggn", rng: Keys | None = None,
        names: Sequence[str] | None = None, key: Tensor | None = None,
    ):  # fmt: skip
        if kind not in KINDS:
            raise ValueError(f"curvature must be one of {', '.join(KINDS)}, got {kind!r}")
        if kind == "mc-fisher" and rng is None:
            raise ValueError('curvature "mc-fisher" draws targets, so it must be given rng')
        self.model, self.params, self.kind, self.rng = model, params, kind, rng
        inputs, self.targets, weights = batch
        self.traced: Traced = trace(model, params, inputs, key, names)
        outputs = self.traced.outputs
        self.weights = None if weights is None else weights.to(outputs.dtype)
        self.likelihood = bound_likelihood(model, params)
        # How negative the Hessian in the outputs was, beside its largest eigenvalue.
        self.clipped = outputs.new_zeros(())
        self.expected = torch.zeros((), dtype=torch.float64, device=outputs.device)

    @property
    def outputs(self) -> Tensor:
        """The network's."""
        return self.traced.outputs

    def columns(self) -> Iterator[Tensor]:
        """Blocks (r, N, outputs...) to pull back, times the root of the examples' weights."""
        outputs = self.outputs.detach()
        if self.kind == "ggn":
            found, self.clipped = roots(self.likelihood, outputs, self.targets, column_block(self.traced))
        elif self.kind == "mc-fisher":
            assert self.rng is not None
            found = iter([sampled_root(self.likelihood, outputs, self.rng, 1, self.targets)])
        else:
            found = iter([gradient(self.likelihood, outputs, self.targets).unsqueeze(0)])
        for some in found:
            block = self._weighted(some)
            self.expected = self.expected + block.square().sum()
            yield block

    def _weighted(self, columns: Tensor) -> Tensor:
        if self.weights is None:
            return columns
        return columns * self.weights.sqrt().reshape(-1, *[1] * (self.outputs.dim() - 1))

    @eagerly
    def misfit(self) -> Tensor:
        """Squared gradients in the outputs beside what they are by this curvature, whose columns were all made."""
        found = self._weighted(gradient(self.likelihood, self.outputs.detach(), self.targets))
        return found.square().sum().double() / self.expected

    @eagerly
    def diagonal(self) -> Weights:
        """Of every weight, in its shape."""
        total: Weights = {}
        for some in self.columns():
            for name, value in diagonal_.squares(self.traced, some).items():
                total[name] = total[name] + value if name in total else value
        return total

    @eagerly
    def kronecker(self) -> dict[str, Any]:
        """See `kronecker.factors`."""
        return kronecker_.factors(self.traced, self.columns(), self.weights)

    @eagerly
    def dense(self) -> Tensor:
        """(P, P), weights in order of their names in the trace."""
        total: Any = 0.0
        for some in self.columns():
            total = total + dense_.outer_products(self.traced, some)
        return total

    @eagerly
    def unknowns(self) -> Weights:
        """Of the likelihood's own unknowns, such as a noise scale, on their unconstrained scale."""
        outputs = self.outputs.detach()
        if self.kind == "empirical-fisher":
            return empirical_unknown_curvature(self.model, self.params, outputs, self.targets, self.weights)
        found, clipped = unknown_curvature(self.model, self.params, outputs, self.targets, self.weights)
        self.clipped = torch.maximum(self.clipped, clipped)
        return found


@eagerly
def second_moments(
    model: BayesianModel, params: Mapping[str, Tensor], batch: Any, key: Tensor | None = None
) -> Weights:
    """Σᵢ wᵢ gᵢ² with gᵢ = ∇ log p(yᵢ | xᵢ, w), for every weight and every unknown of the likelihood."""
    found = Curvature(model, params, batch, "empirical-fisher", key=key)
    return {**found.diagonal(), **found.unknowns()}
