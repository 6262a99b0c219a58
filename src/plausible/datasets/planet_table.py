"""Columns of the compressed tables of planetary systems."""

import csv
import gzip
import zlib
from pathlib import Path

import numpy as np


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a `.csv.gz` file by name, as text; the first one numbers the rows and has no name."""
    try:
        with gzip.open(path, "rt", newline="") as opened:
            header, *rows = list(csv.reader(opened))
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} cannot be read: {error}; fetch it again") from None
    uneven = [i for i, row in enumerate(rows) if len(row) != len(header)]
    if not rows or uneven:
        problem = f"row {uneven[0]} has not {len(header)} cells" if uneven else "it has no rows"
        raise ValueError(f"{path} cannot be read: {problem}; fetch it again")
    return {name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def numbers(columns: dict[str, list[str]], names: tuple[str, ...], path: Path) -> np.ndarray:
    """The named columns side by side; an empty cell is not a number."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}, only {', '.join(filter(None, columns))}; fetch it again"
        )
    try:
        return np.array([[float(cell or "nan") for cell in columns[name]] for name in names]).T
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; fetch it again") from None
