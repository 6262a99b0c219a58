"""What is predicted: numbers or classes, found from the column's values or as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from .columns import mean_and_scale
from .reading import Table, is_missing
from .values import all_numbers, looks_separated, number

Task = Literal["regression", "classification"]
MOST_WHOLE_NUMBERS = 20  # distinct ones that are still taken for classes
ROWS_PER_CLASS = 3  # on average, below which labels are names of rows rather than classes
FEWEST_ROWS = 10


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A number per row; networks see it standardised, people never do."""

    task: ClassVar[Task] = "regression"
    name: str
    mean: float
    scale: float

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Standardised values (N, 1)."""
        values = np.array([number(text) for text in texts], dtype=np.float64)
        return torch.tensor((values - self.mean) / self.scale, dtype=torch.float32).unsqueeze(1)

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"task": self.task, "name": self.name, "mean": self.mean, "scale": self.scale}


@dataclass(frozen=True, kw_only=True)
class Classes:
    """One of a few labels per row."""

    task: ClassVar[Task] = "classification"
    name: str
    classes: tuple[str, ...]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Class numbers (N,)."""
        place = {label: i for i, label in enumerate(self.classes)}
        return torch.tensor([place[text] for text in texts], dtype=torch.int64)

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"task": self.task, "name": self.name, "classes": list(self.classes)}


Target = Numbers | Classes


def target_from_data(data: dict[str, Any]) -> Target:
    """The inverse of `as_data`."""
    if data["task"] == "regression":
        return Numbers(name=data["name"], mean=data["mean"], scale=data["scale"])
    return Classes(name=data["name"], classes=tuple(data["classes"]))


def rows_with_target(table: Table, name: str) -> list[int]:
    """The rows whose target is not missing; too few are an error."""
    rows = [i for i, text in enumerate(table.column(name)) if not is_missing(text)]
    if len(rows) < FEWEST_ROWS:
        raise ValueError(
            f"{table.name} has {len(rows)} row{'s' * (len(rows) != 1)} with a value of {name!r}, "
            f"and at least {FEWEST_ROWS} are needed to learn and to check"
        )
    return rows


def find_task(name: str, texts: Sequence[str], task: Task | None) -> tuple[Task, str]:
    """The task and why: as told, or many numbers for regression, and text or few whole numbers for classification."""
    distinct = Counter(texts)
    numeric = all_numbers(texts)
    if len(distinct) < 2:
        raise ValueError(f"the target {name!r} is always {texts[0]!r}, so there is nothing to predict")
    if task == "regression" and not numeric:
        odd = next(text for text in texts if number(text) is None)
        raise ValueError(f"the target {name!r} must be numbers for regression, got {odd!r}{_separator_hint(odd)}")
    if task is None:
        whole = numeric and all(number(text).is_integer() for text in distinct)  # type: ignore[union-attr]
        few = whole and len(distinct) <= MOST_WHOLE_NUMBERS and len(distinct) * ROWS_PER_CLASS <= len(texts)
        task, why = (
            ("regression", "numbers") if numeric and not few else ("classification", "whole numbers" if few else "text")
        )
        reason = f"{name!r} has {len(distinct):,} different values, all {why}"
    else:
        reason = "as asked for"
    if task == "classification" and len(distinct) * ROWS_PER_CLASS > len(texts):
        odd = next((text for text in distinct if number(text) is None), next(iter(distinct)))
        raise ValueError(
            f"the target {name!r} has {len(distinct):,} different labels in {len(texts):,} rows (such as {odd!r}), "
            f"too many to be classes{_separator_hint(odd)}"
        )
    return task, reason


def learn_target(name: str, task: Task, every: Sequence[str], training: Sequence[str]) -> Target:
    """Class names are those of all rows, so that no held-out row has none; scaling is of training rows alone."""
    if task == "classification":
        labels = set(every)
        ordered = (
            sorted(labels, key=lambda text: (float(number(text) or 0), text))
            if all_numbers(list(labels))
            else sorted(labels)
        )
        return Classes(name=name, classes=tuple(ordered))
    mean, scale = mean_and_scale(np.array([number(text) for text in training], dtype=np.float64))
    return Numbers(name=name, mean=mean, scale=scale)


def _separator_hint(text: str) -> str:
    return "; numbers must be written without separators and with a decimal point" if looks_separated(text) else ""
