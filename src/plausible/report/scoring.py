"""How good predictions are: the columns of a comparison, and their means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import metrics
from ..core.predictive import Predictive
from ..datasets import Dataset
from .tables import Column, Estimate

LEVEL = 0.9  # of the intervals whose coverage is reported

TIMES = {
    "seconds": Column("fit s", ".1f", None),
    "milliseconds": Column("predict ms", ".1f", None),
}
CLASSIFICATION = {
    "accuracy": Column("accuracy", ".1%", "high"),
    "nll": Column("NLL", ".3f", "low"),
    "ece": Column("ECE", ".3f", "low"),
    "brier": Column("Brier", ".3f", "low"),
    "ood": Column("OOD AUROC", ".3f", "high"),
    **TIMES,
}
REGRESSION = {
    "rmse": Column("RMSE", ".4g", "low"),
    "nll": Column("NLL", ".3f", "low"),
    "crps": Column("CRPS", ".4g", "low"),
    "coverage": Column("in 90 % interval", ".1%", None),  # 90 % is right; more is as wrong as less
    **TIMES,
}


def columns(data: Dataset, outliers: bool) -> dict[str, Column]:
    """What is reported of a data set."""
    if data.task != "classification":
        return REGRESSION
    return {key: column for key, column in CLASSIFICATION.items() if outliers or key != "ood"}


def scores(predictive: Predictive, data: Dataset, outside: Predictive | None = None) -> dict[str, float]:
    """How good a prediction of the test part is; numbers are in the units of the original targets.

    Args:
        predictive: Of the test inputs.
        data: Where the right answers are.
        outside: The prediction for inputs that are not like the data; scored by how much more entropy it has.
    """
    y = data.y_test
    if data.task == "classification":
        found = _class_scores(predictive.probs, y)
        if outside is not None:
            found["ood"] = metrics.auroc_ood(predictive.total, outside.total)
        return {name: float(value) for name, value in found.items()}
    scale = data.target_scale
    lower, upper = predictive.interval(LEVEL)
    return {
        "rmse": float(metrics.rmse(predictive.mean, y)) * scale,
        "nll": -float(predictive.log_prob(y).mean()) + math.log(scale),
        "crps": float(predictive.crps(y).mean()) * scale,
        "coverage": float(metrics.picp(lower, upper, y)),
    }


def _class_scores(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": metrics.nll(probs, y),
        "ece": metrics.ece(probs, y),
        "brier": metrics.brier(probs, y),
    }


def over_seeds(runs: Sequence[dict[str, float]]) -> dict[str, Estimate]:
    """Mean and standard error of every number; one run alone has no error."""
    found = {}
    for key in runs[0]:
        values = torch.tensor([run[key] for run in runs], dtype=torch.float64)
        error = float(values.std() / math.sqrt(len(runs))) if len(runs) > 1 else math.nan
        found[key] = Estimate(float(values.mean()), error)
    return found
