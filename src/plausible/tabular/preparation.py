"""From a table to the rows that are learnt from and those that are judged on, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .reading import Table
from .schema import Schema, learn_schema
from .targets import Target, Task, find_task, learn_target, rows_with_target

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Prepared:
    """A split table, and what was learnt from its training rows.

    Attributes:
        train: Rows to learn from.
        test: Rows to judge on.
        schema: How columns become inputs.
        target: What is predicted.
        why: Why the task is what it is.
        without_target: How many rows were left out because their target is missing.
    """

    train: Table
    test: Table
    schema: Schema
    target: Target
    why: str
    without_target: int


def prepare(table: Table, target: str, task: Task | None, test_share: float, seed: int) -> Prepared:
    """Leave out rows without a target, decide the task, split, and learn columns and units from the training rows."""
    if not 0 <= test_share < 1:
        raise ValueError(f"test_share must be at least 0 and less than 1, got {test_share}")
    rows = rows_with_target(table, target)
    texts = [table.columns[target][i] for i in rows]
    found, why = find_task(target, texts, task)
    learn, judge = split(texts, found, test_share, seed)
    train, test = table.rows([rows[i] for i in learn]), table.rows([rows[i] for i in judge])
    schema = learn_schema(train, target)
    goal = learn_target(target, found, texts, train.columns[target])
    return Prepared(train, test, schema, goal, why, len(table) - len(rows))


def split(labels: Sequence[str], task: Task, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to learn from and rows to judge on, in the file's order; classes keep their shares."""
    groups: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        groups.setdefault(label if task == "classification" else "", []).append(i)
    draw = np.random.default_rng(seed)
    held: set[int] = set()
    for label in sorted(groups):
        rows = groups[label]
        count = min(round(share * len(rows)), len(rows) - 1)
        held.update(rows[i] for i in draw.permutation(len(rows))[:count])
    return [i for i in range(len(labels)) if i not in held], sorted(held)
