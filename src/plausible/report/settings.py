"""What a comparison trains: the methods with their numbers, the embedded problems, the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import datasets, networks
from ..core import likelihoods, priors
from ..core.method import Method
from ..core.model import BayesianModel
from ..datasets import Dataset
from ..inference.averaging import SWAG, MultiSWAG
from ..inference.mcmc import HMC
from ..inference.point import MAP, DeepEnsemble
from ..weights.rng import forked

NETWORK = 0x6E6574  # the stream of a seed that initialises the network
BATCH_SIZE = 128
KNOWN_DIGITS = 8  # digits are trained on 0 to 7; 8 and 9 are what the network has never seen
MARGIN = 2.0  # of the plotted box around the data, in standardised units
FAR = 1.0  # from all data: what counts as outside in the plotted box
GRID = 60  # points along a side of the plotted box

# One set of numbers for all data sets, chosen for a demonstration in a minute or two and tuned to none of them. Adam
# under SWAG: plain SGD, its usual base, drives a learnt noise scale to places it does not return from.
CLIMB = MAP(learning_rate=0.01)
METHODS: dict[str, Method] = {
    "map": CLIMB,
    "deep-ensemble": DeepEnsemble(base=CLIMB),
    "swag": SWAG(base=CLIMB),
    "multiswag": MultiSWAG(base=SWAG(base=CLIMB)),
    "hmc": HMC(trajectory_length=0.5),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What to train on a data set, and for how long.

    Attributes:
        load: Gives the data.
        hidden: Widths of the network's hidden layers.
        epochs: Passes of the methods that train.
        transitions: Steps of each chain of HMC, warm-up included.
        chains: Chains of HMC.
        small: Whether HMC finishes soon enough to be run unasked.
    """

    load: Callable[[], Dataset]
    hidden: tuple[int, ...] = (50,)
    epochs: int = 100
    transitions: int = 100
    chains: int = 4
    small: bool = False

    def shortened(self, epochs: int) -> Setting:
        """The same for another number of epochs; HMC's transitions keep their proportion."""
        return replace(self, epochs=epochs, transitions=max(20, round(self.transitions * epochs / self.epochs)))


def _known_digits() -> Dataset:
    data = datasets.digits()
    train, test = data.y_train < KNOWN_DIGITS, data.y_test < KNOWN_DIGITS
    return replace(
        data, x_train=data.x_train[train], y_train=data.y_train[train], x_test=data.x_test[test],
        y_test=data.y_test[test], classes=data.classes[:KNOWN_DIGITS],
    )  # fmt: skip


SETTINGS = {
    "moons": Setting(load=datasets.moons, hidden=(16,), small=True),
    "circles": Setting(load=datasets.circles, hidden=(16,), small=True),
    "digits": Setting(load=_known_digits, hidden=(100,)),
    "diabetes": Setting(load=datasets.diabetes),
    "breast-cancer": Setting(load=datasets.breast_cancer),
    "wine": Setting(load=datasets.wine),
}


def setting_for(data: Dataset) -> Setting:
    """For data of any size: a hundred passes, or fewer where there is so much that 3,000 steps come sooner."""
    most = 3000 * BATCH_SIZE // max(1, len(data.x_train))
    return Setting(load=lambda: data, epochs=min(100, max(5, most)))


def outliers_of(data: Dataset) -> tuple[Tensor | None, str]:
    """Inputs unlike any that was trained on, and what they are; None where nobody can say."""
    if data.name == "digits" and len(data.classes) == KNOWN_DIGITS:
        every = datasets.digits()
        x, y = torch.cat([every.x_train, every.x_test]), torch.cat([every.y_train, every.y_test])
        return x[y >= KNOWN_DIGITS], "trained on 0 to 7, against 8 and 9"
    if is_plane(data):
        points, _ = plotted_box(data)
        known = torch.cat([data.x_train, data.x_test])
        return points[
            torch.cdist(points, known).amin(1) > FAR
        ], "points of the plotted box farther than 1 from all data"
    return None, ""


def is_plane(data: Dataset) -> bool:
    """Whether the data are classes in a plane, which can be drawn."""
    return data.task == "classification" and tuple(data.x_train.shape[1:]) == (2,)


def plotted_box(data: Dataset) -> tuple[Tensor, tuple[float, float, float, float]]:
    """The points of a grid around the data, row by row from the top, and the box (left, right, bottom, top)."""
    known = torch.cat([data.x_train, data.x_test])
    low, high = known.amin(0) - MARGIN, known.amax(0) + MARGIN
    across = torch.linspace(float(low[0]), float(high[0]), GRID)
    down = torch.linspace(float(high[1]), float(low[1]), GRID)
    y, x = torch.meshgrid(down, across, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1), (float(low[0]), float(high[0]), float(low[1]), float(high[1]))


def model_for(data: Dataset, hidden: tuple[int, ...], seed: int) -> BayesianModel:
    """A fully connected network with a normal prior; labels, or numbers with noise of unknown scale."""
    classes = data.task == "classification"
    shape = tuple(data.x_train.shape[1:])
    with forked(seed, NETWORK):
        network = networks.MLP(shape if len(shape) > 1 else shape[0], hidden, len(data.classes) if classes else 1)
    if classes:
        return BayesianModel(network, likelihoods.Categorical(), prior=priors.Normal(scale=1.0))
    # The tighter prior keeps a learnt noise scale honest: with the wider one intervals come out too narrow.
    return BayesianModel(network, likelihoods.Normal(scale="learn"), prior=priors.fan_in(priors.Normal(scale=1.0)))
