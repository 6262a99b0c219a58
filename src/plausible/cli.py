"""The command line. Commands import what they need when they run, so that help appears at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import cli_check, cli_reproduce, cli_table

if TYPE_CHECKING:
    from rich.console import Console

    from .report.comparison import Comparison

app = typer.Typer(
    name="plausible",
    help="Bayesian deep learning for PyTorch: bring a network, get a posterior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DATASETS = ("moons", "circles", "digits", "diabetes", "breast-cancer", "wine")
IMAGES = ("mnist", "fashion-mnist", "kmnist", "cifar10")
QUICK_EPOCHS, QUICK_EXAMPLES = 10, 1000


def _show_version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"plausible {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Bayesian deep learning for PyTorch: bring a network, get a posterior."""


@app.command()
def compare(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA",
            help=f"Any of {', '.join(DATASETS)}, which are embedded, or all of these; or {', '.join(IMAGES)}, which lie in "
            "--data-dir; or a CSV or Parquet file.",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the file to predict.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas, or all; see `plausible methods`. HMC runs unasked only on small networks.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How often each method is trained: 5 times, on images 2 times.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=4, help="Passes over the data; HMC's steps keep their proportion.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Images to train on, by default the first 10,000; a fifth as many are judged."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where images lie; by default the folder PLAUSIBLE_DATA names.")
    ] = None,
    prior: Annotated[
        str | None, typer.Option(metavar="PRIOR", help='Of the weights, such as "normal(0.5)" or "student-t(5, 1)".')
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="hmc or nuts: run it long, check it, and print how far every method is from it.",
        ),
    ] = None,
    truth_steps: Annotated[
        int | None,
        typer.Option(min=20, metavar="N", help="Steps of each of its chains: 1,000, and 4,000 where those disagree."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Does everything work? The same as --seeds 1 --epochs {QUICK_EPOCHS}, and on images --examples "
            f"{QUICK_EXAMPLES}.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the data stay the same.")] = 0,
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where the pictures go.")] = Path("report.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Only print the tables.")] = False,
) -> None:
    """Compare what several methods predict, trained on the same network and data (by default moons and digits)."""
    wanted = _chosen_data(data, target)
    chosen = _chosen_methods(methods)
    if quick and epochs is not None:
        raise typer.BadParameter("give one of --quick and --epochs, not both")
    pictured = [name for name in wanted if name in IMAGES and target is None]
    if (examples is not None or data_dir is not None) and not pictured:
        raise typer.BadParameter(f"--examples and --data-dir are for {', '.join(IMAGES)}")
    if truth_steps is not None and truth is None:
        raise typer.BadParameter("--truth-steps is of --truth hmc or --truth nuts")
    if report.is_dir():
        raise typer.BadParameter(f"--report must be a file, and {report} is a folder")
    if not no_report and not report.resolve().parent.is_dir():  # now, and not after minutes of work
        raise typer.BadParameter(f"--report must lie in a folder that exists, got {report}")
    from rich.console import Console

    shown, told = Console(), Console(stderr=True, highlight=False)
    # Before torch is imported, which takes seconds.
    told.print(f"Comparing {'methods' if chosen is None else ', '.join(chosen)} on {', '.join(wanted)}.", markup=False)
    from .report.comparison import compare as run
    from .report.images import SEEDS as IMAGE_SEEDS
    from .report.settings import SEEDS

    found = []
    for name in wanted:
        few = QUICK_EXAMPLES if quick and examples is None else examples
        count = 1 if quick else seeds or (IMAGE_SEEDS if name in pictured else SEEDS)
        with cli_table.one_line_errors():
            found.append(
                run(
                    name,
                    chosen,
                    target=target,
                    seeds=range(seed, seed + count),
                    epochs=QUICK_EPOCHS if quick else epochs,
                    examples=few if name in pictured else None,
                    data_dir=data_dir if name in pictured else None,
                    prior=prior,
                    truth=truth,
                    truth_steps=truth_steps,
                )
            )
        _print_comparison(shown, found[-1])
    _print_glossary(shown, found)
    if not no_report:
        from .report.page import write_report

        with cli_table.one_line_errors():
            place = write_report(found, report)
        shown.print(f"Pictures of all this: open {place} in a browser.", markup=False, highlight=False)


def _print_comparison(shown: Console, found: Comparison) -> None:
    from .report.legend import cautions, marks

    shown.print()
    shown.print(found)
    for line in (*marks(found), *cautions(found)):
        shown.print(line, style="dim", highlight=False, markup=False)
    if len(found.runs) > 1:
        shown.print()
        shown.print(found.trade_off(), highlight=False)
    for note in found.notes:
        shown.print(f"Note: {note}.", highlight=False, markup=False)
    shown.print()


def _print_glossary(shown: Console, found: list[Comparison]) -> None:
    """Once for all tables: what their columns mean."""
    columns = {column.heading: column.meaning for comparison in found for column in comparison.columns.values()}
    for heading, meaning in columns.items():
        shown.print(f"{heading}: {meaning}", style="dim", highlight=False, markup=False)


def _chosen_data(given: list[str] | None, target: str | None) -> list[str]:
    if target is not None:
        if not given or len(given) != 1:
            raise typer.BadParameter(f"--target is a column of one file, got {len(given or [])} files")
        return given
    if not given:
        return ["moons", "digits"]
    if "all" in given:
        return list(DATASETS)
    wanted = [name.lower().replace("_", "-") for name in given]
    for name, typed in zip(wanted, given, strict=True):
        if name not in DATASETS + IMAGES:
            hint = " (for a file, say which column to predict: --target COLUMN)" if Path(typed).is_file() else ""
            known = ", ".join(DATASETS + IMAGES)
            raise typer.BadParameter(f"data must be any of {known}, or all; got {typed!r}{hint}")
    return list(dict.fromkeys(wanted))


def _chosen_methods(given: str | None) -> list[str] | None:
    from .report.catalogue import find, names

    if given is None:
        return None
    if given.strip().lower() == "all":
        return names()
    try:
        return list(dict.fromkeys(find(name).name for name in given.split(",")))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("methods")
def list_methods() -> None:
    """List every method with its paper."""
    from rich.console import Console
    from rich.table import Column, Table

    from .report.catalogue import ENTRIES

    typed = Column("name", no_wrap=True), Column("in Python", no_wrap=True)  # what one has to write is never cut
    table = Table(*typed, "paper", "what it does")
    for entry in ENTRIES:
        table.add_row(entry.name, f"pl.{entry.class_name}", entry.paper, entry.summary)
    Console().print(table)


@app.command()
def cite(
    methods: Annotated[list[str], typer.Argument(help="Such as swag, SWAG or pl.SWAG; several, if you like.")],
) -> None:
    """Print the BibTeX entries of methods' papers."""
    from .report.catalogue import find

    try:
        entries = dict.fromkeys(find(method).bibtex for method in methods)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo("\n\n".join(entries))  # not through rich, which would break lines


for command in (cli_table.fit, cli_table.predict, cli_table.show, cli_reproduce.reproduce, cli_check.check):
    app.command()(command)


if __name__ == "__main__":
    app()
