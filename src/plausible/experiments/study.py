"""What a study is: a published table, and how its rows are run again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Column:
    """A score.

    Attributes:
        heading: What stands above it.
        form: How it is written.
        better: Which way is better: "low", "high", "near" to `aim`, or "neither" for a description.
        meaning: What it is.
        aim: What it should be, for "near" alone.
        everywhere: Whether every row must have it.
    """

    heading: str
    form: str
    better: str
    meaning: str
    aim: float | None = None
    everywhere: bool = True

    def __post_init__(self):
        if self.better not in ("low", "high", "near", "neither"):
            raise ValueError(f'better must be "low", "high", "near" or "neither", got {self.better!r}')
        if (self.better == "near") != (self.aim is not None):
            raise ValueError(f'aim goes with better="near", got aim={self.aim} and better={self.better!r}')

    @property
    def direction(self) -> str:
        """Which way is better, in words."""
        if self.better == "neither":
            return "neither way is better"
        return f"{self.better}er is better" if self.aim is None else f"nearer to {self.aim:g} is better"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Everything that decides what a row of the table will say. A study adds fields; rows differ by `replace`.

    Attributes:
        name: What the row is called in the table and on the command line.
        epochs: Passes over the training data.
        full: Whether this is the study itself, and not a toy of its shape.
    """

    name: str
    epochs: int
    full: bool = True

    def settings(self) -> dict[str, Any]:
        """The row as it is stored in a file."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a paper says about a row.

    Attributes:
        values: The number of each column that the paper has.
        errors: Their standard errors, where it gives them.
        epochs: How long the authors trained.
    """

    values: Mapping[str, float]
    epochs: int
    errors: Mapping[str, float] = field(default_factory=dict)


def best_device_in_words() -> str:
    """What a fit takes that is not told where to run."""
    import torch  # late: whoever only lists studies does not wait for it

    return torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_in_words()


def cpu_in_words() -> str:
    """For rows that run on a CPU wherever they are."""
    return f"CPU with {os.cpu_count()} cores"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What running a row gives.

    Attributes:
        scores: For every column one number per repetition (a split or a seed).
        seeds: Every seed that was used.
        device: Where it ran, in words; to be given by a row that chooses its device.
        details: What the study's pictures need beside the scores, as plain data.
    """

    scores: Mapping[str, Sequence[float]]
    seeds: Sequence[int]
    device: str = field(default_factory=best_device_in_words)
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_seed(cls, seed: int, scores: Mapping[str, float], **more: Any) -> Outcome:
        """What one seed gives, with a number for every column."""
        return cls(scores={column: [score] for column, score in scores.items()}, seeds=[seed], **more)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of a study's own, drawn from its stored results.

    Attributes:
        name: The end of its file's name.
        caption: What it shows.
        needs: The rows that must be finished for it.
        draw: Writes the file, given the finished results by their row's name.
    """

    name: str
    caption: str
    needs: Sequence[str]
    draw: Callable[[Mapping[str, Any], Path], None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table of a paper, and how to run its rows.

    Attributes:
        name: As on the command line.
        title: What the page is called.
        paper: Authors, year and title.
        about: What is trained and how it is judged, in a few sentences.
        columns: The scores; the first is the one that is drawn.
        rows: The rows in the order in which they are run.
        published: The paper's numbers by the row's name, where it has some.
        differences: What differs from the paper's set-up, in words.
        repetition: What a score is repeated over: "split" or "seed".
        run: Runs a row; gets the folder of data sets, None for the usual one.
        run_seed: In place of `run` for rows that have `seeds`: one training of them, so that each is kept when it ends.
        join_details: The row's details, made of those of its seeds; by default the first seed's.
        toy: The same row in a size that runs in seconds.
        pictures: More pictures than that of the first column.
        findings: What came out, in words that are computed from the finished results by their row's name.
        one_axis: Whether the rows stand on one axis of the first picture; where there are many, they always do.
    """

    name: str
    title: str
    paper: str
    about: str
    columns: Mapping[str, Column]
    rows: Sequence[Row]
    published: Mapping[str, Published]
    differences: Sequence[str]
    repetition: str
    toy: Callable[[Any], Any]
    run: Callable[[Any, Path | None], Outcome] | None = None
    run_seed: Callable[[Any, Path | None, int], Outcome] | None = None
    join_details: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] = lambda details: details[0]
    pictures: Sequence[Picture] = ()
    findings: Callable[[Mapping[str, Any]], Sequence[str]] = lambda results: ()
    one_axis: bool = False

    def __post_init__(self):
        named = {column for published in self.published.values() for column in published.values}
        strange = sorted((self.published.keys() - {row.name for row in self.rows}) | (named - self.columns.keys()))
        if strange:
            raise ValueError(f"{self.name} has published numbers for {', '.join(strange)}, which it does not run")
        if (self.run is None) == (self.run_seed is None):
            raise ValueError(f"{self.name} must have one of run and run_seed")

    def chosen(self, names: Sequence[str] | None) -> list[Row]:
        """The rows of these names, in the study's order; all of them for None."""
        known = [row.name for row in self.rows]
        for name in names or ():
            if name not in known:
                raise ValueError(f"rows must be any of {', '.join(known)}, got {name!r}")
        return [row for row in self.rows if names is None or row.name in names]


def comparable(row: Row, published: Published | None) -> Published | None:
    """The published numbers that may stand beside this row: none beside a toy, or beside one that was trained shorter."""
    if published is None or not row.full or row.epochs < published.epochs:
        return None
    return published


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions and its standard error, NaN where there is one repetition only."""

    mean: float
    error: float


def estimate(scores: Sequence[float]) -> Estimate:
    """Mean and standard error."""
    count = len(scores)
    mean = math.fsum(scores) / count
    if count < 2:
        return Estimate(mean, math.nan)
    return Estimate(mean, math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / (count - 1) / count))


def standard_errors_better(ours: Estimate, column: Column, value: float, error: float = 0.0) -> float:
    """By how many standard errors ours is better than the published value; negative where it is worse.

    The standard error is that of the difference; a paper that gives none counts as exact. NaN where neither way is better.
    """
    if column.better == "neither":
        return math.nan
    if column.aim is not None:
        gain = abs(value - column.aim) - abs(ours.mean - column.aim)
    else:
        gain = ours.mean - value if column.better == "high" else value - ours.mean
    spread = math.hypot(ours.error, error)
    return gain / spread if spread > 0 else math.nan
