"""One JSON file per row of a study, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .study import Estimate, Outcome, Row, Study, estimate

FORMAT = 1
VERSIONS = ("plausible", "torch", "numpy")
FIELDS = (
    "format", "study", "row", "settings", "epochs", "scores", "seeds", "seconds", "device", "threads", "load",
    "versions", "commit", "command", "finished",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished row: what was run, what it scored, and where, when and with what."""

    row: Row
    record: Mapping[str, Any]

    @property
    def scores(self) -> dict[str, Estimate]:
        """Every column's mean and standard error."""
        return {column: estimate(scores) for column, scores in self.record["scores"].items()}

    @property
    def repetitions(self) -> int:
        """How many splits or seeds."""
        return len(next(iter(self.record["scores"].values())))


def finished(
    study: Study, row: Row, outcome: Outcome, *, seconds: float, load: float, command: str, commit: str
) -> Result:
    """The record of a row that has just been run, by the code of a commit."""
    import torch

    _refuse_strange_scores(study, row, outcome.scores)
    record = {
        "format": FORMAT,
        "study": study.name,
        "row": row.name,
        "settings": row.settings(),
        "epochs": row.epochs,
        "scores": {column: [float(s) for s in scores] for column, scores in outcome.scores.items()},
        "seeds": list(outcome.seeds),
        "seconds": round(seconds, 1),
        "device": outcome.device,
        "threads": torch.get_num_threads(),
        "load": round(load, 2),  # mean number of busy processes of the machine: above its cores, seconds are too many
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in VERSIONS}},
        "commit": commit,
        "command": command,
        "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **({"details": dict(outcome.details)} if outcome.details else {}),
    }
    return Result(row=row, record=record)


def joined(study: Study, row: Row, seeds: Sequence[Result]) -> Result:
    """The record of a row from those of its seeds, which may have run in several places."""
    records = [result.record for result in seeds]
    together = {
        "scores": {column: [s for one in records for s in one["scores"][column]] for column in records[0]["scores"]},
        "seeds": [seed for one in records for seed in one["seeds"]],
        "seconds": round(math.fsum(one["seconds"] for one in records), 1),
        "load": max(one["load"] for one in records),
        "finished": max(one["finished"] for one in records),
        **{field: " and ".join(dict.fromkeys(one[field] for one in records)) for field in ("device", "commit")},
    }
    details = dict(study.join_details([one.get("details", {}) for one in records]))
    return Result(row=row, record={**records[-1], **together, **({"details": details} if details else {})})


def _refuse_strange_scores(study: Study, row: Row, scores: Mapping[str, Sequence[float]]) -> None:
    lengths = {len(values) for values in scores.values()}
    needed = {name for name, column in study.columns.items() if column.everywhere}
    if not needed <= set(scores) <= set(study.columns) or len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{study.name} {row.name} must give one score per repetition for {', '.join(study.columns)}, got "
            f"{ {column: len(values) for column, values in scores.items()} }"
        )
    broken = [column for column, values in scores.items() if not all(math.isfinite(v) for v in values)]
    if broken:
        raise ValueError(f"{study.name} {row.name} gave scores that are not finite: {', '.join(broken)}")


class Store:
    """The results of a study in a folder."""

    def __init__(self, folder: Path, study: Study):
        self.folder, self.study = folder / study.name, study

    def path(self, row: Row) -> Path:
        """The file of a row."""
        return self.folder / f"{row.name}.json"

    def path_of_seed(self, row: Row, seed: int) -> Path:
        """The file of one seed of a row that is not finished."""
        return self.folder / "seeds" / f"{row.name}.{seed}.json"

    def read(self, row: Row) -> Result | None:
        """The result of exactly this row; None if there is none, or if it was run with other settings."""
        return self._read(self.path(row), row)

    def read_seed(self, row: Row, seed: int) -> Result | None:
        """What one seed of exactly this row gave, likewise."""
        return self._read(self.path_of_seed(row, seed), row)

    def _read(self, path: Path, row: Row) -> Result | None:
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}; delete it, or run with --restart") from None
        lost = [name for name in FIELDS if name not in record]
        if record.get("format") != FORMAT or lost:
            raise ValueError(f"{path} is not a result of this version; delete it, or run with --restart")
        return Result(row=row, record=record) if record["settings"] == row.settings() else None

    def read_all(self) -> list[Result]:
        """What is finished, in the study's order."""
        found = [self.read(row) for row in self.study.rows]
        return [result for result in found if result is not None]

    def write(self, result: Result) -> Path:
        """Keep a finished row, in place of its seeds."""
        path = self._write(self.path(result.row), result)
        for seed in result.record["seeds"]:
            self.path_of_seed(result.row, seed).unlink(missing_ok=True)
        if (seeds := self.folder / "seeds").is_dir() and not any(seeds.iterdir()):
            seeds.rmdir()
        return path

    def write_seed(self, result: Result) -> Path:
        """Keep one seed of a row."""
        (seed,) = result.record["seeds"]
        return self._write(self.path_of_seed(result.row, seed), result)

    def _write(self, path: Path, result: Result) -> Path:
        """Write a temporary file beside it, sync it and rename it: a kill leaves the old file."""
        if not result.row.full:
            raise ValueError(f"{result.row.name} is a toy, which is not kept beside the study's results")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w") as handle:
                handle.write(_compact(result.record))
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path


def _compact(record: Mapping[str, Any]) -> str:
    """A line per field, and per column of scores: small, and a change is easy to see."""
    lines = []
    for name, value in record.items():
        if name == "scores":
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f' "scores": {{\n{inner}\n }}')
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def commit_of_the_code() -> str:
    """The commit at hand, with a mark where the code has been changed since; to be asked for before a row runs."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short", "HEAD")
        return f"{head} with changes" if _git(here, "status", "--porcelain", "--", "..") else head
    except (OSError, subprocess.CalledProcessError):
        return "no repository"


def _git(folder: Path, *arguments: str) -> str:
    told = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return told.stdout.strip()
