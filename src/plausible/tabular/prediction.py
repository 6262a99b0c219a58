"""Predictions for the rows of a table, as columns of a file."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.predictive import Predictive
from .calibration import LEVEL
from .fitted import FittedTable
from .reading import Table
from .targets import Classes, Target


@dataclass(frozen=True)
class Predictions:
    """What is written, and what a person should know about it.

    Attributes:
        columns: One value per row and column, in the order of the rows given.
        remarks: A line each.
        far: How many rows are far from the training rows.
    """

    columns: dict[str, list[object]]
    remarks: list[str]
    far: int


def predict_table(fitted: FittedTable, table: Table) -> Predictions:
    """Predict every row; the target column may be there and is not looked at."""
    inputs = fitted.inputs(table)
    far = fitted.novelty.far(inputs.x) | inputs.unseen
    parts = [_columns(fitted.target, predictive) for _, predictive in fitted.predictives(inputs.x)]
    columns: dict[str, list[object]] = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    columns["far_from_training"] = ["yes" if row else "no" for row in far]
    return Predictions(columns, inputs.remarks, int(far.sum()))


def _columns(target: Target, predictive: Predictive) -> dict[str, list]:
    if isinstance(target, Classes):
        return _of_classes(predictive, target.classes)
    return _of_numbers(predictive, target.mean, target.scale)


def _of_numbers(predictive: Predictive, mean: float, scale: float) -> dict[str, list]:
    """In the units of the target: stretched, and moved where it is a place and not a width."""
    lower, upper = predictive.interval(LEVEL)
    places = {"mean": predictive.mean, "lower_90": lower, "upper_90": upper}
    widths = {
        "std": predictive.std,
        "epistemic_std": predictive.epistemic.sqrt(),
        "aleatoric_std": predictive.aleatoric.sqrt(),
    }
    found = {name: value.double() * scale + mean for name, value in places.items()}
    found |= {name: value.double() * scale for name, value in widths.items()}
    order = ("mean", "std", "lower_90", "upper_90", "epistemic_std", "aleatoric_std")
    return {name: _written(found[name].squeeze(1)) for name in order}


def _of_classes(predictive: Predictive, classes: tuple[str, ...]) -> dict[str, list]:
    probs = predictive.probs
    columns: dict[str, list] = {"predicted": [classes[i] for i in probs.argmax(1).tolist()]}
    columns |= {f"probability of {label}": _written(probs[:, i]) for i, label in enumerate(classes)}
    parts = {
        "entropy": predictive.total,
        "aleatoric_entropy": predictive.aleatoric,
        "epistemic_entropy": predictive.epistemic,
    }
    return columns | {name: _written(value) for name, value in parts.items()}


def _written(values: torch.Tensor) -> list[str]:
    return [f"{value:.7g}" for value in values.tolist()]  # what float32 knows
