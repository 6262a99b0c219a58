"""In what unit a run's first curvature is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...core.model import BayesianModel
from ...curvature.outputs import bound_likelihood
from ...weights.algebra import Number, Weights


def task(model: Any) -> str | None:
    """What kind of targets a model has."""
    return getattr(model.likelihood, "task", None) if isinstance(model, BayesianModel) else None


def stiffness(model: Any, params: Weights) -> Number:
    """How sharply an example's log likelihood bends: of a regression its noise's precision, where that is a number or tensor."""
    if task(model) != "regression":
        return 1.0
    scale = getattr(bound_likelihood(model, params), "scale", None)
    if isinstance(scale, Tensor):
        return scale.detach().pow(-2).mean()
    return 1.0 / scale**2 if isinstance(scale, int | float) else 1.0
