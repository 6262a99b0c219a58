"""Run the rows of a study that are not finished yet, one after another."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import figure, tables
from .results import Result, Store, commit_of_the_code, finished, joined
from .study import Outcome, Row, Study

Tell = Callable[[str], None]


def run_rows(
    study: Study,
    rows: Sequence[Row],
    store: Store | None,
    *,
    root: Path | None = None,
    command: str = "",
    restart: bool = False,
    seeds: Collection[int] | None = None,
    tell: Tell = lambda text: None,
) -> Iterator[Result]:
    """Every row's result as soon as there is one.

    Args:
        study: What the rows belong to.
        rows: Which rows.
        store: Where results are kept; a row that is there with the same settings is read, not run. None keeps nothing.
        root: The folder of data sets.
        command: What was typed, for the record.
        restart: Run every row again.
        seeds: Run these alone of every row's seeds, so that processes can share a row: whoever ends last finishes it.
        tell: Called with a line about each row before it runs.
    """
    if seeds is not None and study.run_seed is None:
        raise ValueError(f"rows of {study.name} are run whole: there are no seeds of them to choose")
    if seeds is not None and store is None:
        raise ValueError("some of the seeds of a row need a store, in which the others are found")
    for number, row in enumerate(rows, 1):
        name = f"{row.name} ({number} of {len(rows)})"
        kept = None if store is None or restart else store.read(row)
        if kept is not None:
            tell(f"{name}: read, since it was finished {kept.record['finished']}")
            yield kept
            continue
        if study.run is not None:
            tell(f"{name}: {row.epochs} epoch{'s' * (row.epochs != 1)}")
            found: Result | None = _ran(study, row, functools.partial(study.run, row, root), command)
        else:
            found = _seed_by_seed(study, row, store, root, command, restart, seeds, tell, name)
        if found is None:
            continue
        if store is not None:
            store.write(found)
        yield found


def _ran(study: Study, row: Row, run: Callable[[], Outcome], command: str) -> Result:
    began, commit = time.monotonic(), commit_of_the_code()  # while it runs, others may commit
    outcome = run()
    seconds, load = time.monotonic() - began, os.getloadavg()[0]
    return finished(study, row, outcome, seconds=seconds, load=load, command=command, commit=commit)


def _seed_by_seed(
    study: Study,
    row: Any,
    store: Store | None,
    root: Path | None,
    command: str,
    restart: bool,
    seeds: Collection[int] | None,
    tell: Tell,
    name: str,
) -> Result | None:
    """The row from its seeds, each of which is kept as soon as it has run; None while some are missing."""
    assert study.run_seed is not None
    wanted = range(row.seeds)
    if seeds is not None and not set(seeds) <= set(wanted):
        raise ValueError(f"seeds of {row.name} must be any of {', '.join(map(str, wanted))}, got {sorted(seeds)}")
    found = {}
    for seed in wanted if seeds is None else sorted(seeds):
        kept = None if store is None or restart else store.read_seed(row, seed)
        if kept is not None:
            tell(f"{name}, seed {seed} of {row.seeds}: read, since it was finished {kept.record['finished']}")
        else:
            tell(f"{name}, seed {seed} of {row.seeds}: {row.epochs} epoch{'s' * (row.epochs != 1)}")
            kept = _ran(study, row, functools.partial(study.run_seed, row, root, seed), command)
            if store is not None:
                store.write_seed(kept)
        found[seed] = kept
    if store is not None and seeds is not None:
        others = {seed: store.read_seed(row, seed) for seed in wanted if seed not in found}
        found |= {seed: result for seed, result in others.items() if result is not None}
    missing = [seed for seed in wanted if seed not in found]
    if missing:
        tell(f"{name}, still without seeds {', '.join(map(str, missing))}")
        return None
    return joined(study, row, [found[seed] for seed in wanted])


def write_page(study: Study, store: Store, folder: Path) -> Path:
    """The page and the picture of everything that is finished."""
    results = store.read_all()
    folder.mkdir(parents=True, exist_ok=True)
    if results:
        figure.draw(study, results, folder / picture_name(study))
    for own in tables.drawable(study, results):
        own.draw({result.row.name: result for result in results}, folder / tables.file_name(study, own))
    path = folder / f"{study.name}.md"
    path.write_text(tables.page(study, results, picture_name(study)))
    return path


def picture_name(study: Study) -> str:
    """The file of the picture, beside the page."""
    return f"{study.name}.png"
