"""A posterior together with the table it was learnt from: columns, units, scores. One file holds it all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.files.posterior_file import load
from ..core.posteriors import Posterior
from ..core.predictive import Predictive
from .calibration import Calibration
from .novelty import Novelty
from .reading import Table
from .schema import Inputs, Schema
from .targets import Classes, Target, target_from_data

VERSION = 2  # of what stands in the notes
READABLE = (1, VERSION)  # the first had no calibration
NUM_SAMPLES = 64
OUTPUTS_AT_A_TIME = 2**22  # over all draws, so that the length of a table is no matter of memory


@dataclass(frozen=True)
class FittedTable:
    """What `fit_table` gives and `load_table` reads.

    Attributes:
        posterior: Over the network's weights; of standardised inputs and targets.
        schema: How columns become inputs.
        target: What is predicted.
        novelty: Which rows are far from the training rows.
        facts: How it was made, as JSON can hold it.
        calibration: What its predictions are changed by; None changes nothing.
        scores: How good it was on held-out rows; None if there were none.
    """

    posterior: Posterior
    schema: Schema
    target: Target
    novelty: Novelty
    facts: dict[str, Any]
    calibration: Calibration | None = None
    scores: dict[str, Any] | None = None

    def with_scores(self, scores: dict[str, Any]) -> FittedTable:
        """The same with scores."""
        return replace(self, scores=scores)

    def save(self, path: str | Path) -> None:
        """Write one posterior file; `pl.load` reads it too, with all of this in `.notes`."""
        self.posterior.notes = {
            "table": {
                "version": VERSION,
                "schema": self.schema.as_data(),
                "target": self.target.as_data(),
                "novelty": self.novelty.as_data(),
                "facts": self.facts,
                "calibration": self.calibration and self.calibration.as_data(),
                "scores": self.scores,
            }
        }
        self.posterior.save(path)

    def inputs(self, table: Table) -> Inputs:
        """A table's rows as the network takes them."""
        return self.schema.encode(table, self.target.name)

    def predictives(self, x: np.ndarray) -> Iterator[tuple[slice, Predictive]]:
        """Calibrated predictions of consecutive rows; of standardised numbers, where numbers are predicted."""
        outputs = len(self.target.classes) if isinstance(self.target, Classes) else 1
        rows = max(1, OUTPUTS_AT_A_TIME // (NUM_SAMPLES * outputs))
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            found = self.posterior.predict(torch.tensor(x[part], dtype=torch.float32), num_samples=NUM_SAMPLES)
            yield part, found if self.calibration is None else self.calibration.apply(found)


def load_table(path: str | Path) -> FittedTable:
    """Read what `FittedTable.save` wrote."""
    return from_posterior(load(path), str(path))


def from_posterior(posterior: Posterior, source: str) -> FittedTable:
    """A loaded posterior with its table, if it has one."""
    notes = posterior.notes.get("table")
    if notes is None:
        raise ValueError(f"{source} is a posterior without a table; predict needs one that `plausible fit` made")
    if notes.get("version") not in READABLE:
        raise ValueError(
            f"{source} has a table of version {notes.get('version')}, this reads {VERSION}; upgrade plausible"
        )
    return FittedTable(
        posterior,
        Schema.from_data(notes["schema"]),
        target_from_data(notes["target"]),
        Novelty.from_data(notes["novelty"]),
        notes["facts"],
        Calibration.from_data(notes["calibration"]) if notes.get("calibration") else None,
        notes["scores"],
    )
