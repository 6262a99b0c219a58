"""A classifier with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from ..core import likelihoods, priors
from .base import BayesianEstimator
from .choices import seed_from

# Logits need room: with a scale of 1, as for numbers, small tables are predicted with too little confidence.
DEFAULT_PRIOR = priors.fan_in(priors.Normal(scale=5.0))


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """A Bayesian neural network that predicts labels.

    Args:
        method: A method such as `pl.MultiSWAG()`, or its name as in "multiswag". None is a deep ensemble of five.
        network: A module, a function (num_inputs, num_outputs) -> module, or None for a network with one hidden layer.
        likelihood: None for `pl.likelihoods.Categorical()`; for two classes `Bernoulli()` is possible too.
        prior: None for normal weights whose scale is five over the root of a layer's inputs.
        epochs: Passes over the data; for methods that see all data at a time, steps. None: long enough.
        batch_size: Rows a step.
        num_samples: Draws that a prediction averages over.
        standardise: Whether to shift and scale every input column to mean 0 and deviation 1.
        random_state: The same number gives the same estimator.
        device: None takes a GPU if there is one.
        verbose: Show a progress bar.

    Attributes:
        posterior_: The `pl.Posterior` over the network's weights.
        classes_: The labels, in the order of the columns of `predict_proba`.
        network_: What was used, with the weights from before the fit; those after it are in `posterior_`.
        likelihood_: What was used.
        prior_: What was used.
        method_: What was used.
        input_mean_: What is subtracted from each input column.
        input_scale_: What it is then divided by.
        n_features_in_: The number of input columns.
        feature_names_in_: Their names, where X had any.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Infer the posterior; a weight of 2 counts a row twice, and a weight of 0 not at all."""
        x, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = self._read_weights(sample_weight, len(x))
        if weights is not None:
            x, y, weights = x[weights > 0], y[weights > 0], weights[weights > 0]
        self.classes_, labels = np.unique(y, return_inverse=True)
        self.likelihood_ = likelihoods.Categorical() if self.likelihood is None else self.likelihood
        self.num_outputs_ = len(self.classes_)
        targets = torch.as_tensor(labels, dtype=torch.int64)
        if isinstance(self.likelihood_, likelihoods.Bernoulli):
            if len(self.classes_) != 2:
                raise ValueError(f"Bernoulli is for two classes, got {len(self.classes_)}; use Categorical()")
            self.num_outputs_, targets = 1, targets.unsqueeze(-1).double()
        self._infer(x, targets, weights, DEFAULT_PRIOR)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (rows, classes), averaged over the posterior."""
        return self._probabilities(self._read(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # a probability that underflowed is zero, and its logarithm minus infinity
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of every row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """log p(y | x) of every row's true label."""
        x = self._read(X)
        labels = column_or_1d(y)
        places = np.clip(np.searchsorted(self.classes_, labels), 0, len(self.classes_) - 1)
        unseen = self.classes_[places] != labels
        if unseen.any():
            raise ValueError(f"y has the label {labels[unseen].tolist()[0]!r}, which was not in the training data")
        with np.errstate(divide="ignore"):
            return np.log(self._probabilities(x)[np.arange(len(x)), places])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0) -> np.ndarray:
        """Labels drawn from the predictive distribution, shape (rows, n_samples); a column comes from one network."""
        draws = self.predictive(X).sample(n_samples, seed=seed_from(random_state))
        return self.classes_[draws.reshape(n_samples, -1).long().numpy().T]

    def _probabilities(self, x: np.ndarray) -> np.ndarray:
        found = np.concatenate([p.probs.numpy() for _, p in self._parts(x)])
        if self.num_outputs_ == 1 and len(self.classes_) == 2:
            return np.hstack([1 - found, found])
        return found / found.sum(1, keepdims=True)  # an average of float32 rows leaves a few last digits
