"""`plausible check`: are the methods right on this machine?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from .report.checking import Finding


def check(
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Separated by commas; by default every method that can be checked."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and of every run.")] = 0,
) -> None:
    """Hold every method against a posterior in closed form, and samplers against simulations of the model itself."""
    from rich.console import Console

    shown, told = Console(), Console(stderr=True, highlight=False)
    told.print("Checking methods on a regression whose posterior is known.", markup=False)
    from .report.check_subjects import SUBJECTS
    from .report.checking import check_all

    wanted = list(SUBJECTS) if methods is None else [name.strip().lower() for name in methods.split(",")]
    for name in wanted:
        if name not in SUBJECTS:
            raise typer.BadParameter(f"methods must be any of {', '.join(SUBJECTS)}, got {name!r}")
    findings = check_all(
        {name: SUBJECTS[name] for name in wanted}, seed, lambda name: told.print(f"· {name}", markup=False)
    )
    shown.print(_table(findings))
    for finding in findings:
        for failure in finding.failures:
            shown.print(f"{finding.name}: {failure}", markup=False, highlight=False)
    wrong = [finding.name for finding in findings if not finding.right]
    shown.print(
        f"Wrong: {', '.join(wrong)}." if wrong else f"All {len(findings)} are right, each in what it claims.",
        style="bold red" if wrong else "bold green",
    )
    shown.print(
        "How far the worst weight is off, as a share of what chance and step size may do: mean, standard deviation and "
        "correlation against the closed form, mean and spread of ranks in simulations. Claims: the whole posterior, the best "
        "one of independent weights, or no more than its centre.",
        style="dim", highlight=False,
    )  # fmt: skip
    if wrong:
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    from rich import box
    from rich.table import Column, Table

    columns = {"mean": "mean", "sd": "sd", "correlation": "corr", "rank mean (z)": "rank", "rank spread (z)": "spread"}
    table = Table(Column("method", no_wrap=True), "claims", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for heading in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for finding in findings:
        cells = []
        for key in columns:
            off, allowed = finding.numbers.get(key, (math.nan, math.nan))
            cells.append("" if math.isnan(allowed) else f"{off / allowed:.2f}")
        verdict = "[green]right[/]" if finding.right else "[bold red]WRONG[/]"
        table.add_row(finding.name, finding.claim, *cells, verdict)
    return table
