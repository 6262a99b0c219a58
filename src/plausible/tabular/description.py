"""A fitted table in words and small tables, for a terminal. Names from a file are text, never markup."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from ..core.errors import NotSupported
from .calibration import FEWEST_ROWS, LEVEL
from .columns import Column, Date, Numeric
from .fitted import FittedTable
from .targets import Classes

BAR = 20  # characters of a whole one
MOST_ROWS = 30  # of a table of columns


def columns_table(fitted: FittedTable) -> Grid:
    """What became of every column of the file."""
    grid = Grid(title="columns", title_justify="left", title_style="bold")
    for heading in ("column", "read as", "missing", "what is known of it"):
        grid.add_column(heading, overflow="fold")
    missing, total = fitted.facts["missing"], fitted.facts["rows"]["file"]
    rows = [(column.name, column.kind, _known(column)) for column in fitted.schema.columns]
    rows += [(name, "left out", reason) for name, reason in fitted.schema.dropped.items()]
    for name, kind, known in rows[:MOST_ROWS]:
        gone = missing.get(name, 0)
        grid.add_row(Text(name), kind, f"{gone:,} ({gone / total:.1%})" if gone else "", Text(known))
    if len(rows) > MOST_ROWS:
        grid.add_row(f"and {len(rows) - MOST_ROWS} more", "", "", "")
    return grid


def scores_table(fitted: FittedTable) -> Grid:
    """How good predictions of held-out rows were, before calibration too, and what each number means."""
    scores: dict[str, Any] = fitted.scores or {}
    before: dict[str, Any] = scores.get("uncalibrated") or {}
    rows = fitted.facts["rows"]["test"]
    grid = Grid(title=f"on {rows:,} held-out rows", title_justify="left", title_style="bold")
    grid.add_column("score")
    if before:
        grid.add_column("before calibration", justify="right")
    grid.add_column("after" if before else "value", justify="right")
    grid.add_column("meaning", overflow="fold")
    for label, key, form, meaning in _meanings(fitted, scores):
        shown = [f"{before[key]:{form}}" if key in before else ""] if before else []
        grid.add_row(label, *shown, f"{scores[key]:{form}}", meaning)
    return grid


def _meanings(fitted: FittedTable, scores: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Every score: what it is called, its key, how it is written, and what it means."""
    far = ("far from training", "far", ".1%", "rows flagged as unlike the training rows; about 1 % is usual")
    if fitted.target.task == "regression":
        right = f"{LEVEL:.0%} is right; more is as wrong as less"
        return [
            ("RMSE", "rmse", ".4g", f"typical error; predicting the mean alone: {scores['spread']:.4g}"),
            ("NLL", "nll", ".4f", "mean −log density of the truth; lower is better"),
            ("CRPS", "crps", ".4g", "distance of the predicted distribution from the truth"),
            (f"in {LEVEL:.0%} interval", "coverage", ".1%", right),
            far,
        ]
    always = f"right answers; always saying the commonest class: {scores['commonest']:.1%}"
    return [
        ("accuracy", "accuracy", ".1%", always),
        ("NLL", "nll", ".4f", "mean −log probability of the truth; lower is better"),
        ("ECE", "ece", ".4f", "gap between stated and found confidence; 0 is right"),
        ("Brier", "brier", ".4f", "squared error of the probabilities; lower is better"),
        far,
    ]


def calibration_table(fitted: FittedTable) -> Grid:
    """What was stated beside what was found, with bars."""
    numbers = fitted.target.task == "regression"
    what = "values inside intervals" if numbers else "answers right by confidence"
    grid = Grid(title=what, title_justify="left", title_style="bold")
    grid.add_column("stated", justify="right")
    grid.add_column("found", justify="right")
    grid.add_column("")
    if not numbers:
        grid.add_column("rows", justify="right")
    for line in (fitted.scores or {})["calibration"]:
        bar = "█" * round(BAR * line["found"])
        cells = [f"{line['stated']:.0%}", f"{line['found']:.1%}", bar.ljust(BAR, "·")]
        grid.add_row(*cells, *([] if numbers else [f"{line['rows']:,}"]))
    return grid


def story(fitted: FittedTable) -> list[str]:
    """What it predicts, from what, and how it was made, a line each."""
    facts, target, rows = fitted.facts, fitted.target, fitted.facts["rows"]
    kinds = Counter(column.kind for column in fitted.schema.columns)
    shape = "-".join(str(width) for width in facts["network"])
    length = ", ".join(f"{count:,} {unit}" for unit, count in facts["length"].items())
    lines = [
        f"predicts: {target.name} ({target.task}: {facts['why']})",
        f"from: {', '.join(f'{count} {kind}' for kind, count in kinds.items())} columns",
        f"trained on: {rows['train']:,} rows of {facts['source']} ({facts['layout']}), {rows['test']:,} held out",
        f"by: {facts['method']}, network {shape}, {length}, seed {facts['seed']}, {facts['seconds']:.1f} seconds",
        f"when: {facts['made'].replace('T', ' ').replace('+00:00', ' UTC')}",
    ]
    lines.append(f"calibrated: {_calibrated(fitted)}")
    try:
        evidence = fitted.posterior.evidence()
        lines.append(
            f"log evidence: {float(evidence.log_marginal_likelihood):.1f} ({evidence.kind}, before calibration)"
        )
    except NotSupported:  # most methods estimate none
        pass
    if rows["without target"]:
        lines.insert(3, f"left out: {rows['without target']:,} rows without a value of {target.name}")
    if isinstance(target, Classes):
        shown = ", ".join(target.classes[:12]) + (" ..." if len(target.classes) > 12 else "")
        lines.insert(1, f"classes: {len(target.classes)} ({shown})")
    return [*lines, *(f"note: {remark}" for remark in fitted.schema.remarks)]


def _calibrated(fitted: FittedTable) -> str:
    found = fitted.calibration
    if found is None:
        return f"no: not asked for, or fewer than {FEWEST_ROWS} rows to do it on"
    change = "spread multiplied" if found.task == "regression" else "logits divided"
    return f"{change} by {found.factor:.3g}, found on {found.rows:,} rows by networks that had not seen them"


def _known(column: Column) -> str:
    if isinstance(column, Numeric):
        return f"mean {column.mean:.4g}, deviation {column.scale:.4g}, median {column.median:.4g}"
    if isinstance(column, Date):
        form = "" if column.form == "ISO" else f", written {column.form}"
        return f"from {column.first.replace('T00:00:00', '')}{form}"
    shown = ", ".join(column.categories[:6]) + (" ..." if len(column.categories) > 6 else "")
    rare = f"; {len(column.rare)} rare" if column.rare else ""
    return f"{len(column.categories)} categories: {shown}{rare}"
