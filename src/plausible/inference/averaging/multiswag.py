"""MultiSWAG (Wilson & Izmailov, 2020): a mixture of SWAG Gaussians around several modes."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.method import Method, Repeated, require
from .swag import SWAG


@dataclass(frozen=True, kw_only=True)
class MultiSWAG(Repeated):
    """M independent SWAG runs from fresh initialisations; the answer is their equal mixture."""

    modes: int = 5
    base: SWAG = SWAG()

    def __post_init__(self):
        require(isinstance(self.modes, int) and self.modes >= 1, f"modes must be a positive integer, got {self.modes}")
        require(isinstance(self.base, SWAG), f"base must be a pl.SWAG, got {self.base!r}")

    def unfold(self) -> tuple[Method, int]:
        """SWAG, `modes` times."""
        return self.base, self.modes
