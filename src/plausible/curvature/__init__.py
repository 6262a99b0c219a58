"""Second-order quantities of a log likelihood, for any network: sums over examples, exact."""

from .moments import Moments, gradient_and_second_moments
from .products import gauss_newton_product
from .quantities import KINDS, Curvature, second_moments

__all__ = ["KINDS", "Curvature", "Moments", "gauss_newton_product", "gradient_and_second_moments", "second_moments"]
