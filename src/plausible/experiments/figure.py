"""A picture of a study: ours with its interval, and the published number, for every row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from .results import Result
from .study import Study, comparable

OURS, THEIRS = "#1f5fa8", "#c0392b"
INTERVAL = 2.0  # standard errors on either side


def draw(study: Study, results: Sequence[Result], path: Path) -> None:
    """Write the picture of the first column: a panel a row, since rows have scales of their own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure

    key, column = next(iter(study.columns.items()))
    figure = Figure(figsize=(1.6 + 1.3 * len(results), 2.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, result in zip(panels, results, strict=True):
        ours = result.scores[key]
        error = 0.0 if math.isnan(ours.error) else INTERVAL * ours.error
        panel.errorbar([0], [ours.mean], yerr=[error], fmt="o", color=OURS, capsize=4, markersize=5)
        published = comparable(result.row, study.published.get(result.row.name))
        value = None if published is None else published.values.get(key)
        if published is not None and value is not None:
            theirs = INTERVAL * published.errors.get(key, 0.0)
            panel.errorbar([1], [value], yerr=[theirs], fmt="D", color=THEIRS, capsize=4, markersize=5)
        panel.set(
            title=result.row.name,
            xlim=(-0.7, 1.7),
            xticks=[0, 1],
            xticklabels=["ours", "–" if value is None else "paper"],
        )
        panel.title.set_fontsize(9)
        panel.margins(y=0.35)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"{column.heading} ({column.better}er is better)", fontsize=9)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file
