"""Second-order quantities of a log likelihood, for any network: sums over examples, exact."""

from .products import gauss_newton_product
from .quantities import KINDS, Curvature, second_moments

__all__ = ["KINDS", "Curvature", "gauss_newton_product", "second_moments"]
