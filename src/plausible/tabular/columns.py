"""Input columns of each kind: what was learnt of them, and how their text becomes numbers.

Everything is learnt from training rows alone, and a column is plain data: it travels as JSON inside a posterior file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

import numpy as np

from .reading import is_missing
from .values import date, number

MOST_CATEGORIES = 50  # per column; rarer ones share a place
FEWEST_ROWS = 2  # of a category with a place of its own: nothing can be learnt from less
DAYS_IN_YEAR = 365.2425


@dataclass(frozen=True)
class Encoded:
    """A column as numbers.

    Attributes:
        features: One row per row of the table.
        missing: How many values were missing.
        unreadable: How many were there, but not of the column's kind; they count as missing.
        unseen: Which rows have a category that was not in the training rows.
    """

    features: np.ndarray
    missing: int
    unreadable: int
    unseen: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """Numbers, standardised; a missing one becomes the median, and a feature of its own says so."""

    kind: ClassVar[str] = "numeric"
    name: str
    mean: float
    scale: float
    median: float
    had_missing: bool

    @classmethod
    def learn(cls, name: str, texts: Sequence[str]) -> Self:
        """From the values of training rows."""
        values = np.array([number(text) for text in texts if not is_missing(text)], dtype=np.float64)
        median = float(np.median(values))
        had_missing = len(values) < len(texts)
        filled = np.append(values, np.full(len(texts) - len(values), median))
        mean, scale = mean_and_scale(filled)
        return cls(name=name, mean=mean, scale=scale, median=median, had_missing=had_missing)

    @property
    def features(self) -> list[str]:
        """The name of each feature."""
        return [self.name, *([f"{self.name} is missing"] if self.had_missing else [])]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """One number per row, and whether it was missing."""
        parsed = [None if is_missing(text) else number(text) for text in texts]
        values = np.array([self.median if value is None else value for value in parsed], dtype=np.float64)
        absent = np.array([value is None for value in parsed])
        columns = [(values - self.mean) / self.scale, *([absent.astype(np.float64)] if self.had_missing else [])]
        return _encoded(np.stack(columns, 1), texts, absent)


@dataclass(frozen=True, kw_only=True)
class Date:
    """Dates: days since the first, standardised, and where in the year and the week (and the day) they fall.

    A missing date becomes the median day, is at no place of the year or week, and a feature of its own says so.
    """

    kind: ClassVar[str] = "date"
    name: str
    form: str
    first: str
    median: float
    mean: float
    scale: float
    has_times: bool
    had_missing: bool

    @classmethod
    def learn(cls, name: str, texts: Sequence[str], form: str) -> Self:
        """From the values of training rows."""
        dates = [found for text in texts if not is_missing(text) and (found := date(text, form)) is not None]
        first = min(dates)
        days = np.array([_days(first, value) for value in dates])
        mean, scale = mean_and_scale(days)
        return cls(
            name=name, form=form, first=first.isoformat(), median=float(np.median(days)), mean=mean, scale=scale,
            has_times=any(value.hour or value.minute for value in dates), had_missing=len(dates) < len(texts),
        )  # fmt: skip

    @property
    def features(self) -> list[str]:
        """The name of each feature."""
        cycles = ["year", "week", *(["day"] if self.has_times else [])]
        waves = [f"{self.name}: {wave} of the {cycle}" for cycle in cycles for wave in ("sine", "cosine")]
        return [f"{self.name} in days", *waves, *([f"{self.name} is missing"] if self.had_missing else [])]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """A row of features per date."""
        first = datetime.fromisoformat(self.first)
        dates = [None if is_missing(text) else date(text, self.form) for text in texts]
        rows = np.array([self._features(first, value) for value in dates], dtype=np.float64)
        return _encoded(
            rows.reshape(len(texts), len(self.features)), texts, np.array([value is None for value in dates])
        )

    def _features(self, first: datetime, value: datetime | None) -> list[float]:
        flag = [float(value is None)] if self.had_missing else []
        cycles = 3 if self.has_times else 2
        if value is None:
            return [(self.median - self.mean) / self.scale, *[0.0] * (2 * cycles), *flag]
        hour = value.hour + value.minute / 60
        turns = [(value.timetuple().tm_yday - 1) / DAYS_IN_YEAR, value.weekday() / 7, hour / 24][:cycles]
        waves = [wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)]
        return [(_days(first, value) - self.mean) / self.scale, *waves, *flag]


@dataclass(frozen=True, kw_only=True)
class Category:
    """Text that repeats: a 0/1 feature per category, one for all others, and one for missing if any was."""

    kind: ClassVar[str] = "categorical"
    name: str
    categories: tuple[str, ...]
    rare: tuple[str, ...]
    had_missing: bool

    @classmethod
    def learn(cls, name: str, texts: Sequence[str]) -> Self:
        """From the values of training rows; the rarest share the place that unseen categories have."""
        counts = Counter(text for text in texts if not is_missing(text))
        ranked = sorted(counts, key=lambda text: (-counts[text], text))
        own = [text for text in ranked[:MOST_CATEGORIES] if counts[text] >= FEWEST_ROWS]
        had_missing = sum(counts.values()) < len(texts)
        return cls(
            name=name,
            categories=tuple(sorted(own)),
            rare=tuple(sorted(counts.keys() - set(own))),
            had_missing=had_missing,
        )

    @property
    def features(self) -> list[str]:
        """The name of each feature."""
        named = [f"{self.name} = {category}" for category in self.categories]
        return [*named, f"{self.name} is another", *([f"{self.name} is missing"] if self.had_missing else [])]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """A one in the place of each row's category. A missing value where none was in training is at no place."""
        place = {category: i for i, category in enumerate(self.categories)}
        rare, other = set(self.rare), len(self.categories)
        features = np.zeros((len(texts), len(self.features)))
        unseen = np.zeros(len(texts), dtype=bool)
        for row, text in enumerate(texts):
            if is_missing(text):
                if self.had_missing:
                    features[row, -1] = 1.0
                continue
            features[row, place.get(text, other)] = 1.0
            unseen[row] = text not in place and text not in rare
        missing = sum(is_missing(text) for text in texts)
        return Encoded(features, missing=missing, unreadable=0, unseen=unseen)


Column = Numeric | Date | Category
KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Numeric, Date, Category)}


def as_data(column: Column) -> dict[str, Any]:
    """A column as JSON can hold it."""
    return {"kind": column.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(column).items()}}


def from_data(data: dict[str, Any]) -> Column:
    """The inverse of `as_data`."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "kind"}
    return KINDS[data["kind"]](**fields)


def mean_and_scale(values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation; a deviation of 1 where values never change, so that rounding is not blown up."""
    mean, scale = float(values.mean()), float(values.std())
    return mean, scale if scale > 1e-12 * max(1.0, abs(mean)) else 1.0


def _encoded(features: np.ndarray, texts: Sequence[str], absent: np.ndarray) -> Encoded:
    missing = sum(is_missing(text) for text in texts)
    return Encoded(features, missing, int(absent.sum()) - missing, np.zeros(len(texts), dtype=bool))


def _days(first: datetime, value: datetime) -> float:
    return (value - first) / timedelta(days=1)
