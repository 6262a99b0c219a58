"""A CSV written whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_csv(path: str | Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write a temporary file beside `path`, sync it, and rename it: a kill or a full disk leaves the old file."""
    path = Path(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
