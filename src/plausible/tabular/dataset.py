"""A table as one of the library's data sets, for whatever trains on those."""

from __future__ import annotations

from pathlib import Path

import torch

from ..datasets import Dataset
from .preparation import TEST_SHARE, prepare
from .reading import read_table
from .targets import Classes, Numbers, Task


def table_dataset(
    path: str | Path,
    target: str,
    seed: int = 0,
    *,
    task: Task | None = None,
    test_share: float = TEST_SHARE,
    delimiter: str = "auto",
    encoding: str = "utf-8",
) -> Dataset:
    """Read a CSV or Parquet file as `fit_table` would, with the split that it makes of this seed."""
    table = read_table(path, delimiter, encoding)
    parts = prepare(table, target, task, test_share, seed)
    schema, goal = parts.schema, parts.target
    return Dataset(
        name=Path(path).stem,
        task=goal.task,
        x_train=torch.tensor(schema.encode(parts.train).x, dtype=torch.float32),
        y_train=goal.encode(parts.train.columns[target]),
        x_test=torch.tensor(schema.encode(parts.test).x, dtype=torch.float32),
        y_test=goal.encode(parts.test.columns[target]),
        classes=goal.classes if isinstance(goal, Classes) else (),
        feature_names=tuple(schema.features),
        target_mean=goal.mean if isinstance(goal, Numbers) else 0.0,
        target_scale=goal.scale if isinstance(goal, Numbers) else 1.0,
    )
