"""A picture of a study: ours with its interval, and the published number, for every row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .results import Result
from .study import Published, Study, comparable

OURS, THEIRS = "#1f5fa8", "#c0392b"
INTERVAL = 2.0  # standard errors on either side
MOST_PANELS = 8
WIDE = 20.0  # ratio of the largest to the smallest value from which a logarithmic axis tells more


def draw(study: Study, results: Sequence[Result], path: Path) -> None:
    """Write the picture of the first column: a panel a row, or one line a row where there are many."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    lines = study.one_axis or len(results) > MOST_PANELS
    size = (7.5, 1.0 + 0.24 * len(results)) if lines else (1.6 + 1.3 * len(results), 2.6)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    (_draw_lines if lines else _draw_panels)(figure, study, results)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file


def _draw_panels(figure: Any, study: Study, results: Sequence[Result]) -> None:
    """A panel a row, since rows have scales of their own."""
    key, column = next(iter(study.columns.items()))
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, result in zip(panels, results, strict=True):
        panel.errorbar(
            [0], [result.scores[key].mean], yerr=[_ours(result, key)], fmt="o", color=OURS, capsize=4, markersize=5
        )
        published = _published(study, result, key)
        if published is not None:
            theirs = INTERVAL * published.errors.get(key, 0.0)
            panel.errorbar([1], [published.values[key]], yerr=[theirs], fmt="D", color=THEIRS, capsize=4, markersize=5)
        panel.set(
            title=result.row.name,
            xlim=(-0.7, 1.7),
            xticks=[0, 1],
            xticklabels=["ours", "–" if published is None else "paper"],
        )
        panel.title.set_fontsize(9)
        panel.margins(y=0.35)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"{column.heading} ({column.direction})", fontsize=9)


def _draw_lines(figure: Any, study: Study, results: Sequence[Result]) -> None:
    """One axis for all rows, the first on top."""
    key, column = next(iter(study.columns.items()))
    panel = figure.subplots()
    places = list(range(len(results)))[::-1]
    values = [result.scores[key].mean for result in results]
    panel.errorbar(
        values,
        places,
        xerr=[_ours(r, key) for r in results],
        fmt="o",
        color=OURS,
        capsize=3,
        markersize=4,
        label="ours",
    )
    theirs = [
        (place, p.values[key]) for place, r in zip(places, results, strict=True) if (p := _published(study, r, key))
    ]
    if theirs:
        panel.plot(
            [v for _, v in theirs], [place for place, _ in theirs], "D", color=THEIRS, markersize=4, label="paper"
        )
    if min(values) > 0 and max(values) > WIDE * min(values):
        panel.set_xscale("log")
    panel.set_yticks(places, [result.row.name for result in results])
    panel.set_ylim(-0.6, len(results) - 0.4)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel(f"{column.heading} ({column.direction})", fontsize=9)
    panel.legend(fontsize=8, loc="best")


def _ours(result: Result, key: str) -> float:
    return INTERVAL * result.scores[key].error  # not a number, and so not drawn, of a single seed


def _published(study: Study, result: Result, key: str) -> Published | None:
    found = comparable(result.row, study.published.get(result.row.name))
    return found if found is not None and key in found.values else None
