"""Run the rows of a study that are not finished yet, one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import figure, tables
from .results import Result, Store, finished
from .study import Row, Study


def run_rows(
    study: Study,
    rows: Sequence[Row],
    store: Store | None,
    *,
    root: Path | None = None,
    command: str = "",
    restart: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Result]:
    """Every row's result as soon as there is one.

    Args:
        study: What the rows belong to.
        rows: Which rows.
        store: Where results are kept; a row that is there with the same settings is read, not run. None keeps nothing.
        root: The folder of data sets.
        command: What was typed, for the record.
        restart: Run every row again.
        tell: Called with a line about each row before it runs.
    """
    for number, row in enumerate(rows, 1):
        kept = None if store is None or restart else store.read(row)
        if kept is not None:
            tell(f"{row.name} ({number} of {len(rows)}): read, since it was finished {kept.record['finished']}")
            yield kept
            continue
        tell(f"{row.name} ({number} of {len(rows)}): {row.epochs} epochs")
        began = time.monotonic()
        outcome = study.run(row, root)
        seconds = time.monotonic() - began
        result = finished(study, row, outcome, seconds=seconds, load=os.getloadavg()[0], command=command)
        if store is not None:
            store.write(result)
        yield result


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
