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
    "seconds": Column("fit s", ".1f", None, "seconds to fit, for one seed"),
    "milliseconds": Column("predict ms", ".1f", None, "milliseconds to predict the whole test part"),
}
NLL = "how much the right answer surprised it (negative log likelihood, in nats); lower is better"
CLASSIFICATION = {
    "accuracy": Column("accuracy", ".1%", "high", "share of right answers; higher is better"),
    "nll": Column("NLL", ".3f", "low", NLL),
    "ece": Column("ECE", ".3f", "low", "how far its confidence is from its share of right answers; lower is better"),
    "brier": Column("Brier", ".3f", "low", "squared error of its probabilities; lower is better"),
    "ood": Column(
        "OOD AUROC", ".3f", "high", "is it less sure of strange inputs? 1 is always, 0.5 is no better than chance"
    ),
    **TIMES,
}
REGRESSION = {
    "rmse": Column("RMSE", ".4g", "low", "typical error, in the units of the data; lower is better"),
    "nll": Column("NLL", ".3f", "low", NLL),
    "crps": Column(
        "CRPS", ".4g", "low", "error that counts the stated spread too, in the units of the data; lower is better"
    ),
    "coverage": Column(
        "in 90 % interval", ".1%", None, "share of true values that its 90 % intervals hold; 90 % is right"
    ),
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
        found = _class_scores(predictive, y)
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


def _class_scores(predictive: Predictive, y: Tensor) -> dict[str, Tensor]:
    probs = predictive.probs
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": -predictive.log_prob(y).mean(),  # from logits: a sure network's probabilities round to zero
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
