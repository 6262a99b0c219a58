"""One self-contained HTML page of comparisons: no address in it leads anywhere, and every name is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from .catalogue import ENTRIES
from .legend import cautions
from .pictures import panel, plane_points
from .plane import is_plane, plotted_box
from .tables import best_of, error_written, written
from .trade_off import trade_off

if TYPE_CHECKING:
    from .comparison import Comparison

# A second lock beside the escaping: even a script that slipped in could not reach out, nor load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
ABOUT = {entry.name: entry.summary for entry in ENTRIES} | {
    "map-temperature": "MAP with its confidence softened by one number, fitted on held-out examples.",
}


def write_report(comparisons: Sequence[Comparison], path: str | Path = "report.html") -> Path:
    """Write the page and say where it is."""
    place = Path(path)
    place.write_text(page(comparisons), encoding="utf-8")
    return place


def page(comparisons: Sequence[Comparison]) -> str:
    """The page."""
    here = files(__package__)
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    names = ", ".join(c.data.name for c in comparisons)
    links = "".join(f'<a href="#data{k}">{escape(c.data.name)}</a>' for k, c in enumerate(comparisons))
    sections = "".join(_section(c, k) for k, c in enumerate(comparisons))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>Methods compared: {escape(names)}</title>'
        f"<style>{style}</style></head><body><header><h1>How sure is each method, and is it right to be?</h1>"
        f"<p>Several ways to train one network, judged on examples that none of them has seen.</p>"
        f'<nav aria-label="Data sets">{links}</nav></header><main>{sections}</main>'
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>'
    )


def _section(comparison: Comparison, number: int) -> str:
    title = escape(comparison.title)
    name, _, rest = title.partition(": ")
    notes = "".join(f"<li>{escape(note)}</li>" for note in (*cautions(comparison), *comparison.notes))
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    meanings = "".join(
        f"<dt>{escape(column.heading)}</dt><dd>{escape(column.meaning)}</dd>" for column in comparison.columns.values()
    )
    return (
        f'<section id="data{number}" aria-labelledby="heading{number}"><h2 id="heading{number}">{name}</h2>'
        f'<p class="about">{rest}</p>{_table(comparison)}{listed}'
        f'<div class="card beside"><div><h3>Better against quicker</h3><div class="wider">{trade_off(comparison.rows)}'
        f'</div><p class="caption">Down is better, left is quicker. Point at a dot, or reach it with the tab key, for its '
        f"numbers.</p></div><div><h3>What the columns mean</h3><dl>{meanings}</dl></div></div>"
        f"{_panels(comparison, number)}</section>"
    )


def _table(comparison: Comparison) -> str:
    rows, columns = comparison.rows, comparison.columns
    best = {key: best_of(rows, key, column) for key, column in columns.items()}
    head = '<th scope="col" aria-sort="none"><button type="button">method</button></th>'
    for column in columns.values():
        head += (
            f'<th scope="col" aria-sort="none"><button type="button" title="{escape(column.meaning)}">'
            f"{escape(column.heading)}</button></th>"
        )
    body = ""
    for method, row in rows.items():
        cells = ""
        for key, column in columns.items():
            text = written(row[key].mean, column.form)
            mark = '<span class="hidden"> (best)</span>' if text == best[key] else ""
            error = f"<small>{escape(error_written(row[key], column.form))}</small>"
            cells += f'<td data-value="{row[key].mean!r}"{" class=best" if mark else ""}>{text}{mark} {error}</td>'
        label = escape(method)
        body += (
            f'<tr><th scope="row" data-value="{label}" title="{escape(ABOUT.get(method, ""))}">{label}</th>{cells}</tr>'
        )
    count = len(comparison.seeds)
    means = f"Mean over {count} seeds, ± one standard error" if count > 1 else "One seed"
    caption = f"{means}. Click a heading to sort."
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of methods"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _panels(comparison: Comparison, number: int) -> str:
    data, name = comparison.data, f"points{number}"
    grids = {}
    before = ""
    if is_plane(data):
        points, _ = plotted_box(data)
        grids = {method: posterior.predict(points) for method, posterior in comparison.posteriors.items()}
        before = plane_points(data, name)
    most = max((float(grid.epistemic.max()) for grid in grids.values()), default=0.0)
    choices, panels = "", ""
    for k, method in enumerate(comparison.posteriors):
        label, key = escape(method), f"panel{number}-{k}"
        choices += (
            f'<label><input type="radio" name="method{number}" value="{key}"{" checked" * (k == 0)}>'
            f"<span>{label}</span></label>"
        )
        panels += (
            f'<div class="panel" id="{key}"><h3>{label}</h3><p class="caption">{escape(ABOUT.get(method, ""))}</p>'
            f'<div class="figures">{panel(method, comparison, name, grids.get(method), most)}</div></div>'
        )
    return (
        f'{before}<fieldset class="switch"><legend>Look at one method (its first seed)</legend>{choices}</fieldset>'
        f'<div class="panels">{panels}</div>'
    )
