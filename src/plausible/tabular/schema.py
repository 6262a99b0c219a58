"""The columns of a table that a network sees, and what became of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .columns import Category, Column, Date, Numeric, as_data, from_data
from .reading import Table, is_missing, listed
from .values import all_numbers, fitting_date_formats, looks_separated, number


@dataclass(frozen=True)
class Inputs:
    """A table as a network takes it.

    Attributes:
        x: One row of features per row of the table.
        unseen: Which rows have a category that was not in the training rows.
        remarks: What a person should know about these rows, a line each.
    """

    x: np.ndarray
    unseen: np.ndarray
    remarks: list[str]


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which columns are used and how; why the others are not.

    Attributes:
        columns: What is used, in the order of the file.
        dropped: Why each other column is not.
        remarks: What else was noticed, a line each.
    """

    columns: tuple[Column, ...]
    dropped: dict[str, str]
    remarks: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """The name of each number that the network takes."""
        return [feature for column in self.columns for feature in column.features]

    def encode(self, table: Table, target: str | None = None) -> Inputs:
        """A table's rows as features; a column it must have and has not is an error, others are ignored."""
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise ValueError(
                f"{table.name} lacks the column{'s' * (len(absent) > 1)} {listed(absent)}; "
                f"it has {listed(table.columns)}"
            )
        remarks = []
        known = {column.name for column in self.columns} | self.dropped.keys() | {target}
        extra = [name for name in table.columns if name not in known]
        if extra:
            remarks.append(f"ignored, not in the training data: {listed(extra)}")
        parts = [column.encode(table.columns[column.name]) for column in self.columns]
        for column, part in zip(self.columns, parts, strict=True):
            if part.unseen.any():
                row = int(part.unseen.argmax())
                remarks.append(
                    f"{column.name}: {_rows(int(part.unseen.sum()))} with a category that training never saw "
                    f"(such as {table.columns[column.name][row]!r}), taken as “another”"
                )
            if part.unreadable:
                remarks.append(f"{column.name}: {_rows(part.unreadable)} with no {_noun(column)}, taken as missing")
            if part.missing:
                remarks.append(f"{column.name}: {_rows(part.missing)} with a missing value, {_remedy(column)}")
        unseen = np.any([part.unseen for part in parts], axis=0)
        return Inputs(np.concatenate([part.features for part in parts], axis=1), unseen, remarks)

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"columns": [as_data(c) for c in self.columns], "dropped": self.dropped, "remarks": list(self.remarks)}

    @staticmethod
    def from_data(data: dict[str, Any]) -> Schema:
        """The inverse of `as_data`."""
        return Schema(
            columns=tuple(from_data(c) for c in data["columns"]),
            dropped=dict(data["dropped"]),
            remarks=tuple(data["remarks"]),
        )


def learn_schema(table: Table, target: str) -> Schema:
    """Decide the kind of every column but the target from the rows given, which should be training rows.

    Numbers are numeric, whole ones too: their order says more than a place per value. Dates are dates. All other text
    is a category, unless every value differs, as names and numbers of records do; then it is left out.
    """
    columns: list[Column] = []
    dropped: dict[str, str] = {}
    remarks: list[str] = []
    for name, texts in table.columns.items():
        if name == target:
            continue
        present = [text for text in texts if not is_missing(text)]
        reason = _useless(texts, present)
        if reason:
            dropped[name] = reason
            continue
        column, remark = _learn_column(name, texts, present)
        columns.append(column)
        remarks.extend([remark] if remark else [])
    if not columns:
        why = "; ".join(f"{name!r}: {reason}" for name, reason in dropped.items()) or "it is the only one"
        raise ValueError(f"{table.name} has no column to predict {target!r} from ({why})")
    return Schema(columns=tuple(columns), dropped=dropped, remarks=tuple(remarks))


def _useless(texts: Sequence[str], present: Sequence[str]) -> str | None:
    if not present:
        return "has no values"
    distinct = set(present)
    if len(distinct) == 1 and len(present) == len(texts):
        return f"is always {present[0]!r}"
    text = not all_numbers(present) and not fitting_date_formats(present)
    if text and len(distinct) == len(present) and len(present) > 1:
        example = next((value for value in present if looks_separated(value)), None)
        if example is not None:
            return f"is all different text; numbers such as {example!r} must be written without separators to be used"
        return f"is different in every row, as a name or number of a record is (such as {present[0]!r})"
    return None


def _learn_column(name: str, texts: Sequence[str], present: Sequence[str]) -> tuple[Column, str | None]:
    if all_numbers(present):
        return Numeric.learn(name, texts), None
    forms = fitting_date_formats(present)
    if forms:
        ambiguous = {"%d/%m/%Y", "%m/%d/%Y"} <= set(forms) or {"%d-%m-%Y", "%m-%d-%Y"} <= set(forms)
        doubt = f"{name}: could be day or month first, read as day first; write dates as 2024-01-31 to be sure"
        return Date.learn(name, texts, forms[0]), doubt if ambiguous else None
    return Category.learn(name, texts), _doubt_about_text(name, present)


def _doubt_about_text(name: str, present: Sequence[str]) -> str | None:
    """Text that may have been meant as numbers."""
    separated = next((value for value in present if looks_separated(value)), None)
    if separated is not None:
        return f"{name}: {separated!r} is text here; write numbers without separators and with a decimal point"
    others = [value for value in present if number(value) is None]
    if len(others) < 0.5 * len(present):
        return f"{name}: mostly numbers, but categories because of values such as {others[0]!r}"
    return None


def _rows(count: int) -> str:
    return f"{count:,} row" + "s" * (count != 1)


def _noun(column: Column) -> str:
    return "number" if isinstance(column, Numeric) else "readable date"


def _remedy(column: Column) -> str:
    if isinstance(column, Category):
        return "a category of its own" if column.had_missing else "taken as no category: training had none"
    return "taken as the median" + ("" if column.had_missing else ", though training had none")
