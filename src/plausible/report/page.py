"""One self-contained HTML page of comparisons: no address in it leads anywhere, and every name is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from .catalogue import ENTRIES
from .charts import MARGIN_TOP, Plot
from .pictures import panel, plane_points
from .settings import is_plane, plotted_box
from .tables import best_of, error_written, written

if TYPE_CHECKING:
    from .comparison import Comparison

# A second lock beside the escaping: even a script that slipped in could not reach out, nor load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
ABOUT = {entry.name: entry.summary for entry in ENTRIES} | {
    "map-temperature": "MAP with its confidence softened by one number, fitted on held-out examples.",
}
MEANING = {
    "accuracy": "Share of right answers; higher is better.",
    "nll": "Negative log likelihood of the right answer, in nats; lower is better.",
    "ece": "Expected calibration error: how far confidence is from accuracy; lower is better.",
    "brier": "Squared error of the probabilities; lower is better.",
    "ood": "How well the entropy tells outliers from test examples: 0.5 is chance, 1 is perfect.",
    "rmse": "Root mean squared error, in the units of the data; lower is better.",
    "crps": "Continuous ranked probability score, in the units of the data; lower is better.",
    "coverage": "Share of true values inside the 90 % interval; 90 % is right.",
    "seconds": "Seconds to fit, for one seed.",
    "milliseconds": "Milliseconds to predict the whole test part.",
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
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    return (
        f'<section id="data{number}" aria-labelledby="heading{number}"><h2 id="heading{number}">{name}</h2>'
        f'<p class="about">{rest}</p>{_table(comparison)}'
        f'<div class="card"><h3>Better against quicker</h3><div class="wider">{_trade(comparison)}</div>'
        f'<p class="caption">Down is better, left is quicker. Point at a dot, or reach it with the tab key, for its '
        f"numbers.</p></div>{_panels(comparison, number)}"
        f"{listed}</section>"
    )


def _table(comparison: Comparison) -> str:
    rows, columns = comparison.rows, comparison.columns
    best = {key: best_of(rows, key, column) for key, column in columns.items()}
    head = '<th scope="col" aria-sort="none"><button type="button">method</button></th>'
    for key, column in columns.items():
        head += (
            f'<th scope="col" aria-sort="none"><button type="button" title="{escape(MEANING[key])}">'
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
    errors = ", ± one standard error" if len(comparison.seeds) > 1 else ""
    caption = (
        f"Mean over {len(comparison.seeds)} seed{'s' * (len(comparison.seeds) != 1)}{errors}. Click a heading to sort."
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of methods"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _trade(comparison: Comparison) -> str:
    rows = comparison.rows
    seconds = [max(row["seconds"].mean, 1e-3) for row in rows.values()]
    losses = [row["nll"].mean for row in rows.values()]
    errors = [0.0 if row["nll"].error != row["nll"].error else row["nll"].error for row in rows.values()]
    low, high = (pick(n + s * e for n, e in zip(losses, errors, strict=True)) for pick, s in ((min, -1), (max, 1)))
    pad = 0.12 * (high - low) or 0.1
    across = (min(seconds) / 1.5, max(seconds) * 2.2)  # room for the names at the right
    plot = Plot(across, (low - pad, high + pad), "seconds to fit", "NLL", size=(640, 300), log_x=True)
    shown = sorted(zip(rows, seconds, losses, errors, strict=True), key=lambda entry: -entry[2])
    taken: list[tuple[float, float]] = []
    for method, second, loss, error in shown:
        plot.line([(second, loss - error), (second, loss + error)], "whisker")
        x, y = plot.x(second), plot.y(loss)
        level = y + 4
        while any(abs(level - there) < 13 and abs(x - at) < 120 for at, there in taken) and level < plot.size[1] - 50:
            level += 4
        taken.append((x, max(level, MARGIN_TOP)))
        spread = f" ± {error:.3f}" if error else ""
        numbers = escape(f"{method}: NLL {loss:.3f}{spread}, {second:.1f} s")
        plot.add(
            f'<circle class="point" tabindex="0" role="img" aria-label="{numbers}" data-tip="{numbers}" '
            f'cx="{x:.1f}" cy="{y:.1f}" r="6"/><text class="name" x="{x + 10:.1f}" y="{level:.1f}">{escape(method)}</text>'
        )
    return plot.svg("NLL against seconds to fit").replace('role="img"', 'role="group"', 1)


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
    for k, (method, posterior) in enumerate(comparison.posteriors.items()):
        label, key = escape(method), f"panel{number}-{k}"
        choices += (
            f'<label><input type="radio" name="method{number}" value="{key}"{" checked" * (k == 0)}>'
            f"<span>{label}</span></label>"
        )
        panels += (
            f'<div class="panel" id="{key}"><h3>{label}</h3><p class="caption">{escape(ABOUT.get(method, ""))}</p>'
            f'<div class="figures">{panel(posterior, comparison, name, grids.get(method), most)}</div></div>'
        )
    return (
        f'{before}<fieldset class="switch"><legend>Look at one method (its first seed)</legend>{choices}</fieldset>'
        f'<div class="panels">{panels}</div>'
    )
