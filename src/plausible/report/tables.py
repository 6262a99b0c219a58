"""Numbers as a person reads them, and tables of them for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table


MARK = "*"  # beside the best of a column, for terminals and files without colour


class Column(NamedTuple):
    """A number in a table: its heading, how it is written, whether large or small is good (None: neither), its meaning."""

    heading: str
    form: str
    better: str | None
    meaning: str = ""


class Estimate(NamedTuple):
    """A mean over seeds and its standard error, NaN where there is one seed only."""

    mean: float
    error: float


Rows = Mapping[str, Mapping[str, Estimate]]


def comparison_table(rows: Rows, columns: Mapping[str, Column]) -> Table:
    """One row a method; the best values of each column are marked, all of those that look the same as printed."""
    from rich import box  # when it is used: the library itself imports nothing that it can do without
    from rich.markup import escape
    from rich.table import Table

    # Two lines a method and narrow gaps: all columns fit into 80 characters, and no digit is cut off.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in columns.values():
        table.add_column("\n".join(column.heading.rsplit(" ", 1)), justify="right", no_wrap=True)
    best = {key: best_of(rows, key, column) for key, column in columns.items()}
    for method, row in rows.items():
        cells = [_cell(row[key], column.form, best[key]) for key, column in columns.items()]
        table.add_row(escape(method), *cells)
    return table


def written(value: float, form: str) -> str:
    """A number as it is printed; a dash where it is not defined."""
    return "–" if math.isnan(value) else format(value, form)


def error_written(value: Estimate, form: str) -> str:
    """The standard error as it is printed, with its sign before it; nothing where there is none."""
    rounded = ".2g" if form.endswith("g") else form  # of an error two digits say enough
    return "" if math.isnan(value.error) else f"±{format(value.error, rounded)}"


def best_of(rows: Rows, key: str, column: Column) -> str | None:
    """The best mean of a column as printed; None where there is none, or nothing to choose from."""
    values = [row[key].mean for row in rows.values() if not math.isnan(row[key].mean)]
    if column.better is None or len(rows) < 2 or not values:
        return None
    return written(max(values) if column.better == "high" else min(values), column.form)


def _cell(value: Estimate, form: str, best: str | None) -> str:
    text, error = written(value.mean, form), error_written(value, form)
    marked = f"[bold green]{text}{MARK}[/]" if text == best else f"{text} "
    return f"{marked}\n{error} " if error else marked
