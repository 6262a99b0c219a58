"""How good predictions of held-out rows are, in the units of the file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import metrics
from .calibration import LEVEL
from .fitted import FittedTable
from .reading import Table

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage is reported
BINS = 5  # of confidence


def held_out_scores(fitted: FittedTable, table: Table) -> dict[str, Any]:
    """Scores, a table of calibration, and the share of rows far from the training rows; as JSON can hold it.

    Where predictions are calibrated, what they would be without that is scored too, under "uncalibrated".
    """
    inputs = fitted.inputs(table)
    y = fitted.target.encode(table.columns[fitted.target.name])
    far = fitted.novelty.far(inputs.x) | inputs.unseen
    score = _of_numbers if fitted.target.task == "regression" else _of_classes
    found = {**score(fitted, inputs.x, y), "far": float(far.mean())}
    if fitted.calibration is not None:
        found["uncalibrated"] = score(replace(fitted, calibration=None), inputs.x, y)
    return found


def _of_numbers(fitted: FittedTable, x: Any, y: Tensor) -> dict[str, Any]:
    scale = fitted.target.scale  # type: ignore[union-attr]
    means, log_probs, crps = [], [], []
    inside: dict[float, list[Tensor]] = {level: [] for level in LEVELS}
    for rows, predictive in fitted.predictives(x):
        means.append(predictive.mean)
        log_probs.append(predictive.log_prob(y[rows]))
        crps.append(predictive.crps(y[rows]))
        for level in LEVELS:
            lower, upper = predictive.interval(level)
            inside[level].append((lower <= y[rows]) & (y[rows] <= upper))
    coverage = {level: float(torch.cat(parts).double().mean()) for level, parts in inside.items()}
    return {
        "rmse": float(metrics.rmse(torch.cat(means), y)) * scale,
        "nll": -float(torch.cat(log_probs).double().mean()) + math.log(scale),
        "crps": float(torch.cat(crps).double().mean()) * scale,
        "coverage": coverage[LEVEL],
        "spread": float(y.double().std(correction=0)) * scale,
        "calibration": [{"stated": level, "found": share} for level, share in coverage.items()],
    }


def _of_classes(fitted: FittedTable, x: Any, y: Tensor) -> dict[str, Any]:
    probs = torch.cat([predictive.probs for _, predictive in fitted.predictives(x)]).double()
    curve = metrics.calibration_curve(probs, y, bins=BINS)
    bins = zip(curve.confidence.tolist(), curve.accuracy.tolist(), curve.count.tolist(), strict=True)
    commonest = float(y.bincount().max() / len(y))
    return {
        "accuracy": float(metrics.accuracy(probs, y)),
        "nll": float(metrics.nll(probs, y)),
        "brier": float(metrics.brier(probs, y)),
        "ece": float(metrics.ece(probs, y)),
        "commonest": commonest,
        "calibration": [{"stated": sure, "found": right, "rows": rows} for sure, right, rows in bins if rows],
    }
