"""The few shapes a posterior can have; every method's answer is one of them or a mixture."""

from .delta import Delta
from .gaussian import Diagonal, Full, LowRank
from .mixture import Mixture, mixture
from .posterior import Posterior
from .samples import Samples

registry: dict[str, type[Posterior]] = {c.__name__: c for c in (Delta, Diagonal, Full, LowRank, Samples, Mixture)}

__all__ = ["Delta", "Diagonal", "Full", "LowRank", "Mixture", "Posterior", "Samples", "mixture", "registry"]
