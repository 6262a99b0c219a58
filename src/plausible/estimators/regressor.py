"""A regressor with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data
from torch import Tensor

from ..core import likelihoods, priors
from ..core.predictive import Predictive
from .base import BayesianEstimator
from .choices import seed_from
from .units import LOCATION_SCALE, mean_and_scale, moved_and_stretched, outputs_per_target

DEFAULT_PRIOR = priors.fan_in(priors.Normal(scale=1.0))
DEFAULT_LIKELIHOOD = likelihoods.Normal(scale="learn")


class BayesianRegressor(RegressorMixin, MultiOutputMixin, BayesianEstimator):
    """A Bayesian neural network that predicts numbers, one or several per row, and how sure it is of them.

    Args:
        method: A method such as `pl.MultiSWAG()`, or its name as in "multiswag". None is a deep ensemble of five.
        network: A module, a function (num_inputs, num_outputs) -> module, or None for a network with one hidden layer.
        likelihood: How targets scatter. None for normal noise of unknown scale. `Normal`, `HeteroscedasticNormal` and
            `StudentT` speak of standardised targets (unless `standardise` is off), all others of the targets as given.
        prior: None for normal weights whose scale is one over the root of a layer's inputs.
        epochs: Passes over the data; for methods that see all data at a time, steps. None: long enough.
        batch_size: Rows a step.
        num_samples: Draws that a prediction averages over.
        standardise: Whether to shift and scale inputs and targets to mean 0 and deviation 1 while fitting.
        random_state: The same number gives the same estimator.
        device: None takes a GPU if there is one.
        verbose: Show a progress bar.

    Attributes:
        posterior_: The `pl.Posterior` over the network's weights (of standardised targets).
        network_: What was used, with the weights from before the fit; those after it are in `posterior_`.
        likelihood_: What was used.
        prior_: What was used.
        method_: What was used.
        input_mean_: What is subtracted from each input column.
        input_scale_: What it is then divided by.
        target_mean_: What is subtracted from each target.
        target_scale_: What it is then divided by.
        n_features_in_: The number of input columns.
        feature_names_in_: Their names, where X had any.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Infer the posterior; a weight of 2 counts a row twice, and a weight of 0 not at all."""
        x, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        weights = self._read_weights(sample_weight, len(x))
        if weights is not None:
            x, y, weights = x[weights > 0], y[weights > 0], weights[weights > 0]
        self.target_axes_ = y.ndim
        self.likelihood_ = DEFAULT_LIKELIHOOD if self.likelihood is None else self.likelihood
        columns = y.reshape(len(y), -1).astype(np.float64)
        stretched = self.standardise and isinstance(self.likelihood_, LOCATION_SCALE)
        self.target_mean_, self.target_scale_ = mean_and_scale(columns, weights, stretched)
        self.num_outputs_ = outputs_per_target(self.likelihood_) * columns.shape[1]
        targets = torch.as_tensor((columns - self.target_mean_) / self.target_scale_)
        self._infer(x, targets, weights, DEFAULT_PRIOR)
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The expected targets; with `return_std` also their standard deviations, noise included."""
        parts = [(p.mean, p.std if return_std else p.mean) for _, p in self._parts(self._read(X))]
        mean, std = (self._shaped(torch.cat(list(column))) for column in zip(*parts, strict=True))
        return (mean, std) if return_std else mean

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """log p(y | x) of every row, in the units of y; with several targets, of all of them together."""
        x = self._read(X)
        given = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y").reshape(len(x), -1)
        found = []
        for rows, predictive in self._parts(x):
            targets = torch.as_tensor(given[rows], dtype=predictive.outputs.dtype)
            found.append(predictive.log_prob(targets.reshape(predictive.mean.shape)))
        return torch.cat(found).numpy()

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0) -> np.ndarray:
        """Targets drawn from the predictive distribution, in the shape of y with a last axis of n_samples.

        A draw comes from one network at all rows, so that functions of several rows are drawn as they should be.
        """
        draws = self.predictive(X).sample(n_samples, seed=seed_from(random_state))
        return np.moveaxis(np.stack([self._shaped(d) for d in draws]), 0, -1)

    def _predictive(self, x: np.ndarray) -> Predictive:
        standardised = super()._predictive(x)
        if not isinstance(self.likelihood_, LOCATION_SCALE):
            return standardised
        return moved_and_stretched(standardised, self.target_mean_, self.target_scale_, flat=self.target_axes_ == 1)

    def _shaped(self, values: Tensor) -> np.ndarray:
        found = values.numpy()
        return found.reshape(len(found)) if self.target_axes_ == 1 else found
