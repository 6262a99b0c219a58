"""The command line. Commands import what they need when they run, so that help appears at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import cli_table

if TYPE_CHECKING:
    from rich.console import Console

    from .report.comparison import Setting

app = typer.Typer(
    name="plausible",
    help="Bayesian deep learning for PyTorch: bring a network, get a posterior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DATASETS = ("moons", "circles", "digits", "diabetes", "breast-cancer", "wine")
QUICK_EPOCHS = 10


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
        list[str] | None, typer.Argument(metavar="DATA", help=f"Any of {', '.join(DATASETS)}; or all.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas; see `plausible methods`. HMC runs unasked only on small networks.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=4, help="Passes over the data; HMC's steps keep their proportion.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"The same as --epochs {QUICK_EPOCHS}: does everything work?")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Every random number follows from it; the data stay the same.")] = 0,
) -> None:
    """Compare what several methods predict, trained on the same network and data (by default moons and digits)."""
    wanted = _chosen_data(data)
    chosen = _chosen_methods(methods)
    if quick and epochs is not None:
        raise typer.BadParameter("give one of --quick and --epochs, not both")
    length = QUICK_EPOCHS if quick else epochs
    from rich.console import Console

    shown, told = Console(), Console(stderr=True, highlight=False)
    told.print(
        f"Comparing {', '.join(chosen)} on {', '.join(wanted)}."
    )  # before torch is imported, which takes seconds
    from .report.comparison import SETTINGS

    for name in wanted:
        setting = SETTINGS[name] if length is None else SETTINGS[name].shortened(length)
        _compare_on(name, chosen, setting, seed, methods is not None, shown, told)


def _compare_on(
    name: str, chosen: list[str], setting: Setting, seed: int, asked: bool, shown: Console, told: Console
) -> None:
    from .report.comparison import columns, run
    from .report.tables import MARK, comparison_table

    data = setting.load()
    rows, notes = {}, []
    for number, method in enumerate(chosen, 1):
        if method == "hmc" and not setting.small and not asked:
            notes.append(
                f"hmc takes long on this network, so it runs only when asked: plausible compare {name} --methods hmc"
            )
            continue
        told.print(f"{name} · {method} ({number} of {len(chosen)})")
        rows[method], posterior = run(method, data, setting, seed)
        verdict = posterior.diagnostics()
        if not verdict.ok:
            notes.append(f"{method}: {'; '.join(verdict.messages[:2])}")
    width = "-".join(str(size) for size in (data.x_train[0].numel(), *setting.hidden, len(data.classes) or 1))
    title = f"{name}: {len(data.x_train):,} training and {len(data.x_test):,} test examples, network {width}"
    shown.print()
    shown.print(comparison_table(title, rows, columns(data)))
    if len(rows) > 1:
        share = (
            f"; one test example is {1 / len(data.x_test):.2%} of accuracy"
            if data.classes
            else "; in the units of the data"
        )
        shown.print(f"{MARK} best of its column{share}", style="dim", highlight=False)
    for note in notes:
        shown.print(note, style="dim", highlight=False)
    shown.print()


def _chosen_data(given: list[str] | None) -> list[str]:
    if not given:
        return ["moons", "digits"]
    if "all" in given:
        return list(DATASETS)
    wanted = [name.lower().replace("_", "-") for name in given]
    for name in wanted:
        if name not in DATASETS:
            raise typer.BadParameter(f"data must be any of {', '.join(DATASETS)}, or all; got {name!r}")
    return list(dict.fromkeys(wanted))


def _chosen_methods(given: str | None) -> list[str]:
    from .report.catalogue import find, names

    if given is None:
        return names()
    try:
        return list(dict.fromkeys(find(name).name for name in given.split(",")))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("methods")
def list_methods() -> None:
    """List every method with its paper."""
    from rich.console import Console
    from rich.table import Table

    from .report.catalogue import ENTRIES

    table = Table("name", "in Python", "paper", "what it does")
    for entry in ENTRIES:
        table.add_row(entry.name, f"pl.{entry.class_name}", entry.paper, entry.summary)
    Console().print(table)


@app.command()
def cite(method: Annotated[str, typer.Argument(help="Such as swag, or SWAG.")]) -> None:
    """Print the BibTeX entry of a method's paper."""
    from .report.catalogue import find

    try:
        typer.echo(find(method).bibtex)  # not through rich, which would break lines
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


for command in (cli_table.fit, cli_table.predict, cli_table.show):
    app.command()(command)


if __name__ == "__main__":
    app()
