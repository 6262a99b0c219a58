"""Embedded data sets, and readers of the public formats."""

from plausible.datasets.camvid import camvid
from plausible.datasets.cifar10 import cifar10
from plausible.datasets.dataset import Dataset
from plausible.datasets.embedded import breast_cancer, circles, diabetes, digits, moons, wine
from plausible.datasets.image_folder import image_folder
from plausible.datasets.mnist import fashion_mnist, kmnist, mnist, notmnist
from plausible.datasets.own_planets import own_planets
from plausible.datasets.planet_series import PlanetSeries, adjacent_trios, planet_series, trio_series
from plausible.datasets.planet_split import PlanetSplit, planet_twins, split_planets
from plausible.datasets.planet_systems import PlanetSystems
from plausible.datasets.planets import five_planets, three_planets
from plausible.datasets.svhn import svhn
from plausible.datasets.uci import uci, uci_splits

__all__ = [
    "Dataset",
    "PlanetSeries",
    "PlanetSplit",
    "PlanetSystems",
    "adjacent_trios",
    "breast_cancer",
    "camvid",
    "cifar10",
    "circles",
    "diabetes",
    "digits",
    "fashion_mnist",
    "five_planets",
    "image_folder",
    "kmnist",
    "mnist",
    "moons",
    "notmnist",
    "own_planets",
    "planet_series",
    "planet_twins",
    "split_planets",
    "svhn",
    "three_planets",
    "trio_series",
    "uci",
    "uci_splits",
    "wine",
]
