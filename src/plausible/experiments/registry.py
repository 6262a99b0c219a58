"""Which studies there are. Listing them imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .study import Study


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A study's name, the file that has it as STUDY, its paper and what it is about in a line."""

    name: str
    module: str
    paper: str
    summary: str


ENTRIES = (
    Entry(
        name="ensemble-uci",
        module="ensemble_uci",
        paper="Lakshminarayanan, Pritzel & Blundell (2017)",
        summary="deep ensembles of five on UCI regression",
    ),
    Entry(
        name="swag-uci",
        module="swag_uci",
        paper="Maddox, Garipov, Izmailov, Vetrov & Wilson (2019)",
        summary="SWAG on UCI regression",
    ),
    Entry(
        name="laplace-calibration",
        module="laplace_calibration",
        paper="Daxberger, Kristiadi, Immer, Eschenhagen, Bauer & Hennig (2021)",
        summary="calibration of trained networks before and after Laplace",
    ),
)


def find(name: str) -> Entry:
    """A study by name."""
    for entry in ENTRIES:
        if entry.name == name.lower().replace("_", "-"):
            return entry
    raise ValueError(f"the study must be one of {', '.join(entry.name for entry in ENTRIES)}, got {name!r}")


def load(name: str) -> Study:
    """The study itself, which imports torch."""
    return importlib.import_module(f"{__package__}.{find(name).module}").STUDY
