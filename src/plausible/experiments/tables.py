"""A study's numbers beside the paper's: for a terminal, and as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .results import Result
from .study import Column, Estimate, Picture, Published, Row, Study, comparable, standard_errors_better

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "–"


def headings(study: Study) -> list[str]:
    """The first is the row's name."""
    return ["", *(column.heading for column in study.columns.values())]


def cells(study: Study, result: Result) -> list[str]:
    """A line of the page's table, as text: the paper's numbers stand below ours, so that all columns can be seen at once."""
    published = comparable(result.row, study.published.get(result.row.name))
    found = [result.row.name]
    for key, column in study.columns.items():
        ours = result.scores.get(key)
        if ours is None:
            found.append(NOTHING)
            continue
        theirs = [text for text in _beside(ours, column, key, published) if text != NOTHING]
        found.append(written(ours, column) + (f"<br>*{'; '.join(theirs)}*" if theirs else ""))
    return found


def _beside(ours: Estimate, column: Column, key: str, published: Published | None) -> list[str]:
    if published is None or key not in published.values:
        return [NOTHING, NOTHING]
    value, error = published.values[key], published.errors.get(key)
    told = f"{value:g}" if error is None else f"{value:g} ± {error:g}"
    better = standard_errors_better(ours, column, value, error or 0.0)
    if math.isnan(better):
        return [told, NOTHING]
    return [told, f"{abs(better):.1f} SE {'better' if better >= 0 else 'worse'}"]


def written(ours: Estimate, column: Column) -> str:
    """A mean and its standard error."""
    mean = format(ours.mean, column.form)
    return mean if math.isnan(ours.error) else f"{mean} ± {format(ours.error, column.form)}"


def table(study: Study, results: Sequence[Result]) -> Table:
    """For a terminal: a line a score, so that many columns fit; with the paper's part where a row may stand beside it."""
    from rich import box
    from rich.table import Table

    beside = _any_comparable(study, results)
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1), show_edge=False, pad_edge=False)
    for heading in ["", "score", "ours", *(["published", "difference"] if beside else [])]:
        drawn.add_column(heading, justify="left" if heading in ("", "score") else "right", no_wrap=True)
    for result in results:
        published = comparable(result.row, study.published.get(result.row.name))
        had = [(key, column) for key, column in study.columns.items() if key in result.scores]
        for number, (key, column) in enumerate(had):
            ours = result.scores[key]
            line = [result.row.name if number == 0 else "", column.heading, written(ours, column)]
            last = number == len(had) - 1
            drawn.add_row(*line, *(_beside(ours, column, key, published) if beside else []), end_section=last)
    return drawn


def _any_comparable(study: Study, results: Sequence[Result]) -> bool:
    return any(comparable(result.row, study.published.get(result.row.name)) for result in results)


def remarks(study: Study, results: Sequence[Result]) -> list[str]:
    """What a reader of the table must know: what is compared, what differs, and why a row stands alone."""
    found = [f"{column.heading}: {column.meaning}; {column.direction}" for column in study.columns.values()]
    if not all(result.row.full for result in results):
        return [*found, "a toy of the study's shape: these numbers mean nothing and are not kept"]
    found.append(f"± one standard error over {study.repetition}s; a difference is in standard errors (SE)")
    return [*found, *(f"differs from the paper: {line}" for line in differences(study, results))]


def differences(study: Study, results: Sequence[Result]) -> list[str]:
    """The study's own, and those of the number of epochs, which follow from the rows."""
    longer: dict[tuple[int, int], list[str]] = {}
    shorter = []
    for result in results:
        row, published = result.row, study.published.get(result.row.name)
        if published is None:
            continue
        if comparable(row, published) is None:
            shorter.append(_too_short(row, published))
        elif row.epochs > published.epochs:
            longer.setdefault((row.epochs, published.epochs), []).append(row.name)
    lines = [
        f"{ours} epochs where the paper has {theirs} ({', '.join(names)})" for (ours, theirs), names in longer.items()
    ]
    return [*lines, *shorter, *study.differences]


def _too_short(row: Row, published: Published) -> str:
    return f"{row.name} was trained for {row.epochs} epochs, the paper's for {published.epochs}: not put side by side"


def page(study: Study, results: Sequence[Result], picture: str) -> str:
    """The study's page in Markdown, made of nothing but the study and the stored results."""
    lines = [
        f"# {study.title}",
        "",
        f"*{study.paper}.*",
        "",
        study.about,
        "",
        f"    plausible reproduce {study.name}",
        "",
    ]
    if not results:
        return "\n".join([*lines, "No row has been run yet.", ""])
    lines += _markdown([headings(study), *(cells(study, r) for r in results)])
    drawn = (
        "ours and the published numbers"
        if _any_comparable(study, results)
        else next(iter(study.columns.values())).heading
    )
    lines += ["", f"![{study.title}: {drawn}]({picture})", ""]
    repeated = [r for r in results if r.repetitions > 1]
    if repeated:
        alone = f"; a row of one {study.repetition} has none" if len(repeated) < len(results) else ""
        lines += [f"The bars are two standard errors on either side{alone}.", ""]
    lines += ["What the columns mean:", ""]
    lines += [f"- {c.heading}: {c.meaning}; {c.direction}" for c in study.columns.values()]
    lines += [f"- ± one standard error over {study.repetition}s"] if repeated else []
    if _any_comparable(study, results):
        beside = ", and the difference in standard errors (SE)" if repeated else ""
        lines += [f"- *in italics: the published number{beside}*"]
    for own in drawable(study, results):
        lines += ["", f"![{own.caption}]({file_name(study, own)})", "", f"*{own.caption}*"]
    found = study.findings({result.row.name: result for result in results})
    lines += ["", "What came out:", "", *(f"- {line}" for line in found)] if found else []
    lines += ["", "What differs from the paper:", ""]
    lines += [f"- {line}" for line in differences(study, results)]
    missing = [row.name for row in study.rows if row.name not in {result.row.name for result in results}]
    lines += ["", f"Not run yet: {', '.join(missing)}."] if missing else []
    lines += ["", "How the numbers were made:", ""]
    lines += _markdown(
        [["", f"{study.repetition}s", "epochs", "seconds", "device", "load", "torch", "commit"]]
        + [_made(r) for r in results]
    )
    return "\n".join([*lines, ""])


def drawable(study: Study, results: Sequence[Result]) -> list[Picture]:
    """The study's own pictures whose rows are finished."""
    finished = {result.row.name for result in results}
    return [picture for picture in study.pictures if finished.issuperset(picture.needs)]


def file_name(study: Study, picture: Picture) -> str:
    """The file of a picture of the study's own, beside the page."""
    return f"{study.name}-{picture.name}.png"


def _made(result: Result) -> list[str]:
    record = result.record
    device = f"{record['device']}, {record['threads']} thread{'s' * (record['threads'] != 1)}"
    return [
        result.row.name, str(result.repetitions), str(record["epochs"]), f"{record['seconds']:.0f}", device,
        f"{record['load']:.1f}", record["versions"]["torch"], record["commit"],
    ]  # fmt: skip


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(['---', *['---:'] * (len(head) - 1)])}|",
        *(f"| {' | '.join(row)} |" for row in rest),
    ]
