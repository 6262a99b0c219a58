"""The few shapes a posterior can have; every method's answer is one of them or a mixture."""

from .delta import Delta
from .dropout import Dropout
from .gaussian import Diagonal, Full, LowRank
from .kronecker import Block, Kronecker
from .low_rank_precision import LowRankPrecision
from .mixture import Mixture, mixture
from .posterior import Posterior
from .samples import Samples

registry: dict[str, type[Posterior]] = {
    c.__name__: c for c in (Delta, Diagonal, Dropout, Full, Kronecker, LowRank, LowRankPrecision, Samples, Mixture)
}

__all__ = [
    "Block",
    "Delta",
    "Diagonal",
    "Dropout",
    "Full",
    "Kronecker",
    "LowRank",
    "LowRankPrecision",
    "Mixture",
    "Posterior",
    "Samples",
    "mixture",
    "registry",
]
