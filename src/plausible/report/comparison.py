"""Several methods on one network and one data set, judged on examples that no method has seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .. import datasets, metrics, networks
from ..core import likelihoods, priors
from ..core.fit import fit
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.posteriors import Posterior
from ..core.predictive import Predictive
from ..datasets import Dataset
from ..inference.averaging import SWAG, MultiSWAG
from ..inference.mcmc import HMC
from ..inference.point import MAP, DeepEnsemble
from ..weights.rng import forked
from .tables import Column

NETWORK = 0x6E6574  # the stream of a seed that initialises the network
LEVEL = 0.9  # of the intervals whose coverage is reported

# One set of numbers for all data sets, chosen for a demonstration in a minute or two and tuned to none of them.
METHODS: dict[str, Method] = {
    "map": MAP(learning_rate=0.01),
    "deep-ensemble": DeepEnsemble(base=MAP(learning_rate=0.01)),
    "swag": SWAG(),
    "multiswag": MultiSWAG(),
    "hmc": HMC(trajectory_length=0.5),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What to train on a data set, and for how long.

    Attributes:
        load: Gives the data.
        hidden: Widths of the network's hidden layers.
        epochs: Passes of the methods that train.
        transitions: Steps of HMC, warm-up included.
        small: Whether HMC finishes soon enough to be run unasked.
    """

    load: Callable[[], Dataset]
    hidden: tuple[int, ...]
    epochs: int = 100
    transitions: int = 300
    small: bool = False

    def shortened(self, epochs: int) -> Setting:
        """The same for another number of epochs; HMC's transitions keep their proportion."""
        return replace(self, epochs=epochs, transitions=max(20, round(self.transitions * epochs / self.epochs)))


SETTINGS = {
    "moons": Setting(load=datasets.moons, hidden=(16,), small=True),
    "circles": Setting(load=datasets.circles, hidden=(16,), small=True),
    "digits": Setting(load=datasets.digits, hidden=(100,)),
    "diabetes": Setting(load=datasets.diabetes, hidden=(50,)),
    "breast-cancer": Setting(load=datasets.breast_cancer, hidden=(50,)),
    "wine": Setting(load=datasets.wine, hidden=(50,)),
}


CLASSIFICATION = {
    "accuracy": Column("accuracy", ".2%", "high"),
    "nll": Column("NLL", ".4f", "low"),
    "brier": Column("Brier", ".4f", "low"),
    "ece": Column("ECE", ".4f", "low"),
    "auroc": Column("error AUROC", ".3f", "high"),
    "seconds": Column("seconds", ".1f", None),
}
REGRESSION = {
    "rmse": Column("RMSE", ".3f", "low"),
    "nll": Column("NLL", ".4f", "low"),
    "crps": Column("CRPS", ".3f", "low"),
    "coverage": Column("in 90 % interval", ".1%", None),  # 90 % is right; more is as wrong as less
    "seconds": Column("seconds", ".1f", None),
}


def columns(data: Dataset) -> dict[str, Column]:
    """What is reported of a data set."""
    return CLASSIFICATION if data.task == "classification" else REGRESSION


def model_for(data: Dataset, hidden: tuple[int, ...], seed: int) -> BayesianModel:
    """A fully connected network with a standard normal prior; labels, or numbers with noise of unknown scale."""
    classes = data.task == "classification"
    shape = tuple(data.x_train.shape[1:])
    with forked(seed, NETWORK):
        network = networks.MLP(shape if len(shape) > 1 else shape[0], hidden, len(data.classes) if classes else 1)
    likelihood = likelihoods.Categorical() if classes else likelihoods.Normal(scale="learn")
    return BayesianModel(network, likelihood, prior=priors.Normal(scale=1.0))


def run(
    method: str, data: Dataset, setting: Setting, seed: int, progress: bool = True
) -> tuple[dict[str, float], Posterior]:
    """Train one method and score it on the test part."""
    chosen = METHODS[method]
    model = model_for(data, setting.hidden, seed)
    length: dict[str, Any] = {"steps": setting.transitions} if chosen.full_batch else {"epochs": setting.epochs}
    began = time.perf_counter()
    posterior = fit(model, data.train, chosen, seed=seed, progress=progress, **length)
    seconds = time.perf_counter() - began
    return {**scores(posterior.predict(data.x_test), data), "seconds": seconds}, posterior


def scores(predictive: Predictive, data: Dataset) -> dict[str, float]:
    """How good a prediction of the test part is; numbers are in the units of the original targets."""
    y = data.y_test
    if data.task == "classification":
        return {name: float(value) for name, value in _class_scores(predictive.probs, y).items()}
    scale = data.target_scale
    lower, upper = predictive.interval(LEVEL)
    return {
        "rmse": float(metrics.rmse(predictive.mean, y)) * scale,
        "nll": -float(predictive.log_prob(y).mean()) + math.log(scale),
        "crps": float(predictive.crps(y).mean()) * scale,
        "coverage": float(metrics.picp(lower, upper, y)),
    }


def _class_scores(probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    confidence, answer = probs.max(1)
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": metrics.nll(probs, y),
        "brier": metrics.brier(probs, y),
        "ece": metrics.ece(probs, y),
        "auroc": metrics.auroc_error(confidence, answer == y),
    }
