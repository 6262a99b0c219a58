"""Deep ensembles (Lakshminarayanan et al., 2017): several networks from different starts, averaged."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.method import Method, Repeated, require
from .map import MAP


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Repeated):
    """M independent runs of `base` from fresh initialisations; the answer is their equal mixture."""

    members: int = 5
    base: Method = MAP()

    def __post_init__(self):
        require(
            isinstance(self.members, int) and self.members >= 1,
            f"members must be a positive integer, got {self.members}",
        )
        require(isinstance(self.base, Method), f"base must be a method such as pl.MAP(), got {self.base!r}")
        require(self.base.unfold()[1] is None, f"base must be a method of one mode such as pl.SWAG(), got {self.base}")

    def unfold(self) -> tuple[Method, int]:
        """The base method, `members` times."""
        return self.base, self.members
