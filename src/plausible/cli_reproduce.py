"""`plausible reproduce`: published tables, run again.

The command imports what it needs when it runs, so that help and the list appear at once.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from .cli_table import one_line_errors


def reproduce(
    study: Annotated[str | None, typer.Argument(metavar="NAME", help="A study; without one they are listed.")] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these rows of its table, separated by commas.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A toy of its shape in seconds: does everything work? Nothing is kept.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of data sets; by default PLAUSIBLE_DATA.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where numbers and page go, instead of results/ and docs/studies/."),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Run rows again that are finished.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only print what is stored; nothing runs.")] = False,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Only these seeds of each row, so that processes can share one."),
    ] = None,
) -> None:
    """Run a published study again and print our numbers beside the paper's; rows that are stored in results/ are not run."""
    from .experiments import registry

    if study is None:
        _list()
        return
    try:
        registry.find(study)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if data_dir is not None and not data_dir.is_dir():
        raise typer.BadParameter(f"--data-dir must be a folder, and {data_dir} is none")
    if seeds is not None and not all(seed.isdecimal() for seed in seeds.split(",")):
        raise typer.BadParameter(f"--seeds must be numbers separated by commas, got {seeds!r}")
    if seeds is not None and quick:
        raise typer.BadParameter(
            "--seeds does not go with --quick, which keeps nothing that seeds could be joined from"
        )
    if show and (quick or restart or seeds is not None):
        raise typer.BadParameter("--show runs nothing, so it goes with none of --quick, --restart and --seeds")
    chosen = [int(seed) for seed in seeds.split(",")] if seeds else None
    _run(study, rows.split(",") if rows else None, quick, data_dir, results, restart, chosen, show)


def _list() -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from .experiments.registry import ENTRIES

    table = Table(
        Column("name", no_wrap=True, min_width=max(len(entry.name) for entry in ENTRIES)), "paper", "what it is about"
    )
    for entry in ENTRIES:
        table.add_row(entry.name, entry.paper, entry.summary)
    Console().print(table)


def _run(
    name: str,
    names: list[str] | None,
    quick: bool,
    data_dir: Path | None,
    results: Path | None,
    restart: bool,
    seeds: list[int] | None,
    show: bool,
) -> None:
    from rich.console import Console

    shown, told = Console(), Console(stderr=True, highlight=False)

    def tell(text: str) -> None:
        told.print(text, markup=False)

    tell(f"Reproducing {name}.")  # before torch is imported, which takes seconds
    from .experiments import registry, tables
    from .experiments.reproduce import run_rows, write_page
    from .experiments.results import Store

    study = registry.load(name)
    store = None if quick else Store(results or Path("results"), study)
    pages = Path("docs/studies") if results is None else results
    with one_line_errors():
        wanted = study.chosen(names)
        if quick:
            wanted = [study.toy(row) for row in wanted]
        if store is not None:
            stored = [row for row in wanted if store.read(row) is not None]
            tell(_what_is_stored(len(stored), len(wanted), results or Path("results"), show))
            wanted = stored if show else wanted
        command = shlex.join(["plausible", *sys.argv[1:]])
        running = run_rows(
            study, wanted, store, root=data_dir, command=command, restart=restart, seeds=seeds, tell=tell
        )
        found = list(running)
        page = None if store is None or show else write_page(study, store, pages)
    if found:
        shown.print(tables.table(study, found))
    for remark in tables.remarks(study, found) if found else ():
        shown.print(remark, style="dim", markup=False, highlight=False)
    if page is not None:
        shown.print(f"The page of this study: {page}", markup=False, highlight=False)


def _what_is_stored(stored: int, wanted: int, folder: Path, show: bool) -> str:
    found = f"{stored} of {wanted} rows are stored in {folder}"
    if show and not stored:
        return f"{found}; where the repository is, --show has its numbers, or give --results DIR."
    if stored == wanted or show:
        return f"{found}."
    return f"{found}; the others run now, for as long as the study says (--rows chooses some, --show none, --quick is a toy)."
