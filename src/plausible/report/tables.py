"""Tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

MARK = "*"  # beside the best of a column, for terminals and files without colour


@dataclass(frozen=True)
class Column:
    """A number in a table: its heading, how it is written, and whether large or small is good (None: neither)."""

    heading: str
    form: str
    better: str | None


def comparison_table(title: str, rows: Mapping[str, Mapping[str, float]], columns: Mapping[str, Column]) -> Table:
    """One row a method; the best values of each column are marked, all of those that look the same as printed."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method", no_wrap=True)
    for column in columns.values():
        table.add_column(column.heading, justify="right")
    best = {key: _best(rows, key, column) for key, column in columns.items()}
    for method, row in rows.items():
        cells = [_cell(written(row[key], column.form), best[key]) for key, column in columns.items()]
        table.add_row(method, *cells)
    return table


def written(value: float, form: str) -> str:
    """A number as it is printed; a dash where it is not defined."""
    return "–" if math.isnan(value) else format(value, form)


def _best(rows: Mapping[str, Mapping[str, float]], key: str, column: Column) -> str | None:
    values = [row[key] for row in rows.values() if not math.isnan(row[key])]
    if column.better is None or len(rows) < 2 or not values:
        return None
    return written(max(values) if column.better == "high" else min(values), column.form)


def _cell(text: str, best: str | None) -> str:
    return f"[bold green]{text}{MARK}[/]" if text == best else f"{text} "
