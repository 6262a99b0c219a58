"""A Gaussian from the curvature of the log joint at its highest point."""

from .laplace import Laplace

__all__ = ["Laplace"]
