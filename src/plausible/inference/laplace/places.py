"""The hills that Newton steps climb: a network's log joint over all data, and a log density."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...core.density import LogDensity
from ...core.method import Sweep
from ...core.model import BayesianModel
from ...weights.algebra import Weights, from_vector, to_vector
from .newton import Place
from .prior_curvature import prior_curvature
from .structures import dense_precision
from .survey import survey, whole_slope


@dataclass(frozen=True, eq=False)
class NetworkPlace(Place):
    """Weights of a network; the curvature is Gauss and Newton's, or a Fisher information."""

    params: Weights
    names: Sequence[str]
    model: BayesianModel
    sweep: Sweep
    kind: str

    @cached_property
    def whole(self) -> tuple[float, Tensor]:
        """The log joint of all data and its slope."""
        value, slope = whole_slope(self.model, self.params, self.sweep)
        return float(value), to_vector({k: slope[k] for k in self.names}).double()

    @cached_property
    def precision(self) -> Tensor:
        """Λ."""
        found = survey(self.model, self.params, self.sweep, "full", self.kind, self.names)
        prior = prior_curvature(self.model, self.params)
        cold = 1.0 / self.model.temperature
        curvature = {
            "weights": {"dense": found.curvature["dense"] * cold},
            "unknowns": {k: v * cold for k, v in found.unknowns.items() if k in self.names},
        }
        return dense_precision(curvature, {k: prior[k] * cold for k in self.names})

    def at(self, params: Weights) -> NetworkPlace:
        """Other weights."""
        return NetworkPlace(params, self.names, self.model, self.sweep, self.kind)


@dataclass(frozen=True, eq=False)
class DensityPlace(Place):
    """A point of a log density; the curvature is minus the Hessian, by automatic differentiation."""

    params: Weights
    names: Sequence[str]
    target: LogDensity

    @cached_property
    def whole(self) -> tuple[float, Tensor]:
        """The log density and its slope."""
        value, slope = self.target.slope(self.params)
        return float(value), to_vector({k: slope[k] for k in self.names}).double()

    @cached_property
    def precision(self) -> Tensor:
        """−∇² log p."""
        own = {k: self.params[k] for k in self.names}

        def value(vector: Tensor) -> Tensor:
            return self.target.log_joint({**self.params, **from_vector(vector, own)})

        # By reverse mode twice, the mode that every operation has.
        found = -torch.func.jacrev(torch.func.jacrev(value))(to_vector(own)).double()
        return (found + found.mT) / 2

    def at(self, params: Weights) -> DensityPlace:
        """Other values."""
        return DensityPlace(params, self.names, self.target)
