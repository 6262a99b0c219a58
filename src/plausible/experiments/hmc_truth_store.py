"""Truths on disk: long chains take most of an hour, and every method that is added later is held against the same ones."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import plausible as pl

from ..core.files import container
from ..core.method import Method
from ..core.predictive import Predictive
from ..datasets import Dataset

KIND = "truth"
PARTS = ("outputs", "weights", "strata")  # of a prediction, beside the likelihood's unknowns


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What long chains predict for the test part of a split, and whether they agree with one another.

    Attributes:
        predictive: The average over all chains.
        mixing: In numbers, by name.
    """

    predictive: Predictive
    mixing: dict[str, float]


def origin(
    sampler: Method, model: pl.BayesianModel, sets: Sequence[Dataset], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that decides what chains will say, as plain data: truths of another origin are other truths.

    Args:
        sampler: What runs the chains.
        model: What they are chains of.
        sets: The data of every split.
        settings: Seeds and lengths, as plain data.
    """
    examples = hashlib.sha256()
    for split in sets:
        for values in (split.x_train, split.y_train, split.x_test):
            examples.update(f"{values.dtype} {tuple(values.shape)}".encode())
            examples.update(values.contiguous().numpy().data)
    # A version may have several states of the code; those of the sampler's own folder are told apart.
    code = hashlib.sha256()
    for file in sorted(Path(inspect.getfile(type(sampler))).parent.glob("*.py")):
        code.update(file.read_bytes())
    return {
        "settings": dict(settings),
        "sampler": repr(sampler),
        "model": [repr(part) for part in (model.source, model.likelihood, model.prior)],
        "examples": examples.hexdigest(),
        "code": code.hexdigest(),
        "versions": {"plausible": pl.__version__, "torch": torch.__version__},
        "device": "cuda" if torch.cuda.is_available() else "cpu",  # whose rounding leads chains elsewhere
    }


def path_of(folder: Path, name: str, told: Mapping[str, Any]) -> Path:
    """The file for truths of this origin; its name alone keeps apart those of another."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return folder / "hmc-truth" / f"{name}-{digest[:16]}.safetensors"


def write(path: Path, found: Sequence[Truth], told: Mapping[str, Any]) -> None:
    """Write all splits' truths, whole or not at all."""
    tensors = {}
    for number, truth in enumerate(found):
        p = truth.predictive
        own = {**{part: getattr(p, part) for part in PARTS}, **{f"unknowns/{k}": v for k, v in p.unknowns.items()}}
        tensors.update({f"{number}/{name}": values for name, values in own.items()})
    splits = [{"mixing": truth.mixing, "exact": truth.predictive.exact} for truth in found]
    container.write(path, tensors, {"kind": KIND, "origin": told, "splits": splits})


def read(path: Path, likelihood: Any, told: Mapping[str, Any]) -> tuple[Truth, ...] | None:
    """The truths of this origin; None where there are none, or where the file is damaged or of something else."""
    try:
        tensors, manifest = container.read(path, KIND)
    except (FileNotFoundError, ValueError):
        return None  # they will be found again, and written over what is there
    if manifest.get("origin") != json.loads(json.dumps(told)):
        return None
    found = []
    for number, split in enumerate(manifest["splits"]):
        start = f"{number}/"
        own = {k.removeprefix(start): v.to(told["device"]) for k, v in tensors.items() if k.startswith(start)}
        unknowns = {k.removeprefix("unknowns/"): v for k, v in own.items() if k.startswith("unknowns/")}
        parts = {part: own[part] for part in PARTS}
        predictive = Predictive(likelihood=likelihood, unknowns=unknowns, exact=split["exact"], **parts)
        found.append(Truth(predictive=predictive, mixing=split["mixing"]))
    return tuple(found)
