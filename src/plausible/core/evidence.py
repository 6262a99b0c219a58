"""The log marginal likelihood, and what kind of statement about it is being made."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

KINDS = ("exact", "laplace", "lower bound", "annealed", "training speed", "prequential")


@dataclass(frozen=True)
class Evidence:
    """log p(D | model)."""

    log_marginal_likelihood: Tensor
    kind: str
    standard_error: float = 0.0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {KINDS}, got {self.kind!r}")
