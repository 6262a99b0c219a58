"""Log marginal likelihoods: which model, which prior, which noise the data prefer."""

from .exact import exact
from .laplace import laplace

__all__ = ["exact", "laplace"]
