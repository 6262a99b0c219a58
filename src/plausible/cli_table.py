"""`plausible fit`, `predict` and `show`: from a CSV to calibrated predictions.

Commands import what they need when they run, so that help appears at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from .tabular.fitted import FittedTable

TASKS = ("auto", "regression", "classification")
Delimiter = Annotated[str, typer.Option(metavar="MARK", help="auto, comma, semicolon, tab, bar, or the character.")]
Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of the file's text, such as utf-8 or latin-1.")]


def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A CSV file with column names in its first line, or Parquet.")
    ],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    method: Annotated[str, typer.Option(metavar="NAME", help="See `plausible methods`.")] = "multiswag",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the posterior goes; by default COLUMN.plausible.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the training rows; by default long enough.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Every random number follows from it, the split too.")] = 0,
    test_share: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the rows that is held out and judged on.")
    ] = 0.2,
    task: Annotated[str, typer.Option(metavar="TASK", help="auto, regression or classification.")] = "auto",
    calibrate: Annotated[
        bool, typer.Option(help="Correct how sure predictions are, by cross-fitting; takes longer.")
    ] = True,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="PRIOR", help='Such as "normal(0.5)", "student-t(5, 1)" or "hierarchical(laplace, inverse-gamma)".'
        ),
    ] = None,
    delimiter: Delimiter = "auto",
    encoding: Encoding = "utf-8",
) -> None:
    """Learn to predict a column of a CSV from the others, check it on held-out rows, and write one posterior file."""
    if task not in TASKS:
        raise typer.BadParameter(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    place = (
        out if out is not None else Path(f"{re.sub(r'[^A-Za-z0-9_-]+', '-', target).strip('-') or 'target'}.plausible")
    )
    if place.is_dir():
        raise typer.BadParameter(f"--out must be a file, and {place} is a folder")
    shown, told = _consoles()
    with one_line_errors():
        from .tabular.reading import read_table

        table = read_table(data, delimiter, encoding)
        table.column(target)  # before torch is imported, which takes seconds
        told.print(
            f"Read {len(table):,} rows and {len(table.columns)} columns of {table.name}: {table.layout}.", markup=False
        )
        if calibrate:
            told.print("Two runs follow: the fit, and then the cross-fitting that calibrates it.")
        from .tabular import description
        from .tabular.training import fit_table

        wanted: Any = None if task == "auto" else task
        fitted = fit_table(
            table, target, method=_method(method), task=wanted, epochs=epochs, test_share=test_share, seed=seed,
            calibrate=calibrate, prior=prior,
        )  # fmt: skip
        fitted.save(place)
    _print_lines(shown, description.story(fitted))
    shown.print(description.columns_table(fitted))
    _print_scores(shown, fitted)
    shown.print(f"Written to {place}. Next: plausible predict {place} NEW.csv", markup=False, highlight=False)


def predict(
    posterior: Annotated[Path, typer.Argument(metavar="POSTERIOR", help="A file that `plausible fit` wrote.")],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A CSV file with the same columns; the target may be missing.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the predictions go.")] = Path("predictions.csv"),
    delimiter: Delimiter = "auto",
    encoding: Encoding = "utf-8",
) -> None:
    """Predict the rows of a CSV, with intervals or probabilities, and flag rows unlike the training rows."""
    if out.resolve() == data.resolve():
        raise typer.BadParameter(f"--out would overwrite the data in {data}")
    shown, _ = _consoles()
    with one_line_errors():
        from .tabular.reading import read_table

        table = read_table(data, delimiter, encoding)
        from .tabular.fitted import load_table
        from .tabular.prediction import predict_table
        from .tabular.writing import write_csv

        fitted = load_table(posterior)
        found = predict_table(fitted, table)
        write_csv(out, found.columns)
    _print_lines(
        shown, [f"read: {len(table):,} rows of {table.name} ({table.layout})", *(f"note: {r}" for r in found.remarks)]
    )
    share = f"{found.far:,} of {len(table):,} rows"
    _print_lines(
        shown,
        [f"far from the training rows: {share}; do not lean on their intervals" if found.far else f"far: {share}"],
    )
    shown.print(f"{fitted.target.name}: {len(table):,} predictions written to {out}", markup=False, highlight=False)


def show(
    posterior: Annotated[Path, typer.Argument(metavar="POSTERIOR", help="A posterior file.")],
) -> None:
    """Say what a posterior file is, what it was trained on, and how well calibrated it was on held-out rows."""
    shown, _ = _consoles()
    with one_line_errors():
        from .core.files.posterior_file import load
        from .tabular import description
        from .tabular.fitted import from_posterior

        loaded = load(posterior)
        if "table" not in loaded.notes:
            _print_lines(shown, _plain(posterior, loaded))
            return
        fitted = from_posterior(loaded, str(posterior))
    _print_lines(shown, [f"file: {posterior} ({posterior.stat().st_size / 1e3:,.0f} kB)", *description.story(fitted)])
    shown.print(description.columns_table(fitted))
    _print_scores(shown, fitted)


def _plain(path: Path, loaded: Any) -> list[str]:
    network = type(getattr(loaded.model, "source", loaded.model)).__name__
    count = sum(weight.numel() for weight in loaded.model.start.values())
    return [
        f"file: {path} ({path.stat().st_size / 1e3:,.0f} kB)",
        f"a {type(loaded).__name__} of {len(loaded.components)} component{'s' * (len(loaded.components) != 1)}",
        f"of a {network} with {count:,} unknowns, trained on {loaded.model.num_data or 0:,.0f} examples",
        "made in Python, so it knows no columns and no held-out scores",
    ]


def _method(name: str) -> Any:
    """The settings that suit tables, where there are some; else the method's own."""
    from .report.catalogue import find
    from .tabular.training import METHODS

    entry = find(name)
    if entry.name in METHODS:
        return METHODS[entry.name]
    import plausible

    return getattr(plausible, entry.class_name)()


def _consoles() -> tuple[Console, Console]:
    from rich.console import Console

    return Console(), Console(stderr=True, highlight=False)


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        label, _, rest = line.partition(": ")
        console.print(f"{label:>10}", end="  ", style="bold", markup=False, highlight=False) if rest else None
        console.print(rest or label, markup=False, highlight=False)


def _print_scores(console: Console, fitted: FittedTable) -> None:
    from .tabular import description

    if fitted.scores is None:
        console.print("Nothing was held out, so nothing is known about how good it is.")
        return
    console.print(description.scores_table(fitted))
    console.print(description.calibration_table(fitted))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can put right is one line on stderr and exit status 2, as for a wrong option."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
