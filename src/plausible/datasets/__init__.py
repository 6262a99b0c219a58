"""Embedded data sets, and readers of the public formats."""

from plausible.datasets.dataset import Dataset
from plausible.datasets.embedded import breast_cancer, circles, diabetes, digits, moons, wine
from plausible.datasets.files import fashion_mnist, mnist, uci

__all__ = [
    "Dataset",
    "breast_cancer",
    "circles",
    "diabetes",
    "digits",
    "fashion_mnist",
    "mnist",
    "moons",
    "uci",
    "wine",
]
