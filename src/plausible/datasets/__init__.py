"""Embedded data sets, and readers of the public formats."""

from plausible.datasets.camvid import camvid
from plausible.datasets.cifar10 import cifar10
from plausible.datasets.dataset import Dataset
from plausible.datasets.embedded import breast_cancer, circles, diabetes, digits, moons, wine
from plausible.datasets.image_folder import image_folder
from plausible.datasets.mnist import fashion_mnist, kmnist, mnist, notmnist
from plausible.datasets.svhn import svhn
from plausible.datasets.uci import uci, uci_splits

__all__ = [
    "Dataset",
    "breast_cancer",
    "camvid",
    "cifar10",
    "circles",
    "diabetes",
    "digits",
    "fashion_mnist",
    "image_folder",
    "kmnist",
    "mnist",
    "moons",
    "notmnist",
    "svhn",
    "uci",
    "uci_splits",
    "wine",
]
