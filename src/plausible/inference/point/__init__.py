"""Point estimates and ensembles of them."""

from .deep_ensemble import DeepEnsemble
from .map import MAP

__all__ = ["MAP", "DeepEnsemble"]
