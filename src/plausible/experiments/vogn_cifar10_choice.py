"""Settings of VOGN, chosen on images that are held out of the training part.

    python -m plausible.experiments.vogn_cifar10_choice alexnet-vogn --candidate 0      judges one candidate
    python -m plausible.experiments.vogn_cifar10_choice alexnet-vogn --seed 0           runs a seed of the row with the best

A candidate trains on the first 45,000 images, for as long as the row does or for as many epochs as it says, and is judged on
the other 5,000. The best is the one that falls least short of the published figures there, and of Adam's accuracy every twenty
epochs, each measured by its tolerance. The second command waits until all candidates of its row are judged, so that processes
can share both, and runs the row with what the best one has of its own, for as long as the row does. What it chose is to be
written into `vogn_cifar10.CHOSEN`: no row is run by a file of results.

What was judged is in `results/vogn-alexnet-choice-h200.json` and `results/vogn-rates-h200.json` (by the published figures alone,
without Adam's, but for the last three of `alexnet-vogn`, the only ones of its candidates that have been judged).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import plausible as pl

from ..datasets import Dataset
from . import vogn_cifar10
from .reproduce import run_rows
from .results import Result, Store
from .study import Outcome, Study
from .vogn_cifar10 import CIFARRow
from .vogn_cifar10_findings import BEHIND, LOOK_EVERY, behind, shortfalls

HELD_OUT = 5_000
PATIENCE = 20.0  # seconds from one look for the other candidates to the next
# What a candidate has of its own. Without augmentation a network that has not trained for as long is better than one that has
# (ρ = 10, precision 1,000, rate 1e-4: 69.6 %, NLL .894 after 40 of 161 epochs, 68.9 %, 1.07 at the end), so rates fall early.
CANDIDATES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "alexnet-plain-vogn": (
        {"precision": 1000.0, "rate": 2e-4, "falls": (17, 21, 25), "epochs": 48},
        {"precision": 1000.0, "rate": 1.5e-4, "falls": (22, 27, 32), "epochs": 48},
        {"precision": 1000.0, "rate": 2e-4, "falls": (20, 24, 28), "epochs": 48},
        {"precision": 1000.0, "rate": 4e-4, "falls": (12, 24, 36), "epochs": 48},
    ),
    # Wide draws make it slow (γ = 1e-3: 62.9 % after 20 epochs), narrow ones sure of too much (γ = 1e-2: 71.8 %, NLL 1.20 at the
    # end, 0.80 after 20 epochs). An s of ten batches gains a point of accuracy beside that of the newest alone, with one draw.
    "alexnet-vogn": (
        {"curvature_decay": 0.9, "epochs": 161},
        {"rate": 6e-4, "curvature_decay": 0.9, "falls": (15, 125, 150), "epochs": 161},
        {"rate": 1e-3, "damping": 2e-3, "curvature_decay": 0.9, "falls": (16, 90, 105), "epochs": 121},
        {"rate": 1e-3, "damping": 3e-3, "curvature_decay": 0.9, "falls": (15, 80, 100), "epochs": 121},
        {"rate": 3e-4, "damping": 3e-3, "curvature_decay": 0.9, "falls": (60, 75, 90), "epochs": 101},
        {"rate": 5e-4, "damping": 5e-3, "curvature_decay": 0.9, "falls": (45, 58, 70), "epochs": 81},
        {"rate": 1.5e-3, "damping": 5e-3, "curvature_decay": 0.9, "falls": (14, 55, 70), "epochs": 81},
    ),
    "lenet5-vogn": ({"rate": 1e-3, "falls": (15,), "epochs": 25}, {"rate": 5e-4, "falls": (15,), "epochs": 25}),
    "resnet18-vogn": ({"rate": 4e-4, "epochs": 20}, {"rate": 1e-3, "epochs": 20}),
}


def row_named(name: str) -> CIFARRow:
    """A row of `vogn-cifar10`."""
    (row,) = vogn_cifar10.STUDY.chosen([name])
    assert isinstance(row, CIFARRow)
    return row


def candidates_of(row: CIFARRow) -> list[CIFARRow]:
    """The row with other settings, in the order of `CANDIDATES`."""
    rows = [replace(row, name=f"{row.name}-{k}", seeds=1, **own) for k, own in enumerate(CANDIDATES[row.name])]
    return [replace(own, looks=own.epochs // LOOK_EVERY) for own in rows]


def held_out(data: Dataset) -> Dataset:
    """The training part, its last images in the place of the test part."""
    count = len(data.x_train) - min(HELD_OUT, len(data.x_train) // 2)
    x, y = data.x_train, data.y_train
    return replace(data, x_train=x[:count], y_train=y[:count], x_test=x[count:], y_test=y[count:])


def run_seed(row: CIFARRow, root: Path | None, seed: int) -> Outcome:
    """One training without the held-out images, judged on them along its way and at its end."""
    data = held_out(vogn_cifar10.load(row.limit, root)[0])
    moments = [_scores(at, row, data) for at in vogn_cifar10.trained(row, data, seed)]
    return Outcome.of_seed(seed, moments[-1], details={"moments": moments})


def _scores(posterior: pl.Posterior, row: CIFARRow, data: Dataset) -> dict[str, float]:
    found = vogn_cifar10.predicted(posterior, row, data.x_test)
    y = data.y_test.to(found.probs.device)
    count = vogn_cifar10.TRAIN_IMAGES
    return {
        "accuracy": 100 * float(pl.metrics.accuracy(found.probs, y)),
        "train": vogn_cifar10.accuracy_on(posterior, row, (data.x_train[:count], data.y_train[:count])),
        "nll": -float(found.log_prob(y).mean()),
        "ece": float(pl.metrics.ece(found.probs, y)),
    }


STUDY = Study(
    name="vogn-cifar10-choice",
    title="Settings of VOGN",
    paper=vogn_cifar10.STUDY.paper,
    about="Candidates trained on 45,000 images of CIFAR-10 and judged on 5,000 others, none of which is a test image.",
    columns={key: vogn_cifar10.STUDY.columns[key] for key in ("accuracy", "train", "nll", "ece")},
    rows=[own for name in CANDIDATES for own in candidates_of(row_named(name))],
    published={},
    differences=(),
    repetition="seed",
    run_seed=run_seed,
    toy=vogn_cifar10.toy,
)


def shortfall(row: CIFARRow, result: Result, adam: Result) -> float:
    """How many tolerances a candidate is worse than the published row or behind Adam, by the figure in which it is worst.

    Adam's accuracy is that on the test images.
    """
    moments = result.record["details"]["moments"]
    epochs = [result.row.epochs * (k + 1) / len(moments) for k in range(len(moments))]
    below = behind(epochs, [own["accuracy"] for own in moments], adam)
    return max(*shortfalls(row.name, result).values(), max(below) / BEHIND)


def best(row: CIFARRow, results: Path) -> CIFARRow | None:
    """The row with the settings of its best candidate, by what a folder has of results; None while one is not judged."""
    store = Store(results, STUDY)
    found = [store.read(candidate) for candidate in candidates_of(row)]
    judged = [(k, result) for k, result in enumerate(found) if result is not None]
    if len(judged) < len(found):
        return None
    adam = Store(results, vogn_cifar10.STUDY).read(row_named(f"{row.network}-adam"))
    if adam is None:
        raise FileNotFoundError(f"{row.name} is held against Adam's curve, and {results} has no row {row.network}-adam")
    chosen, _ = min(judged, key=lambda one: shortfall(row, one[1], adam))
    own = {name: value for name, value in CANDIDATES[row.name][chosen].items() if name != "epochs"}
    return replace(row, **own)


def run_chosen(row: CIFARRow, results: Path, *, root: Path | None, seeds: Sequence[int], command: str) -> list[Result]:
    """Seeds of the row with the settings of its best candidate, once that is known."""
    while (own := best(row, results)) is None:
        time.sleep(PATIENCE)
    study = vogn_cifar10.STUDY
    return list(run_rows(study, [own], Store(results, study), root=root, command=command, seeds=seeds))


def main(arguments: Sequence[str] | None = None) -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=list(CANDIDATES))
    parser.add_argument("--candidate", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    command = f"python -m plausible.experiments.vogn_cifar10_choice {asked.row}"
    row = row_named(asked.row)
    if asked.candidate is None:
        seeds = range(row.seeds) if asked.seed is None else [asked.seed]
        run_chosen(row, asked.results, root=asked.data_dir, seeds=seeds, command=f"{command} --seed {asked.seed}")
        return
    own, store = candidates_of(row)[asked.candidate], Store(asked.results, STUDY)
    list(run_rows(STUDY, [own], store, root=asked.data_dir, command=f"{command} --candidate {asked.candidate}"))


if __name__ == "__main__":
    main()
