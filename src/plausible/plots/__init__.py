"""Pictures of priors and posteriors; each function returns a matplotlib figure."""

from .learned_scales import learned_scales
from .prior_predictive import prior_predictive
from .weight_posteriors import weight_posteriors

__all__ = ["learned_scales", "prior_predictive", "weight_posteriors"]
