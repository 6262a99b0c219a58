"""scikit-learn estimators: a posterior behind `fit` and `predict`.

Inputs, and the targets of a regression, are standardised inside and mapped back, so that one prior and one learning
rate suit tables in any units.
"""

from __future__ import annotations

import copy
import importlib
import math
import numbers
import pkgutil
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from . import inference
from .core import likelihoods, priors
from .core.files.posterior_file import load
from .core.fit import fit
from .core.method import Method
from .core.model import BayesianModel
from .core.posteriors import Posterior
from .core.predictive import Predictive
from .inference.point import MAP, DeepEnsemble
from .networks import MLP
from .weights.rng import forked

NETWORK = 0x6E6574  # the stream of a seed that initialises the network
HIDDEN = (64,)
BATCH_SIZE = 64
EPOCHS, FEWEST_STEPS = 50, 1000  # whichever is longer: a small table needs steps, a large one passes
TRANSITIONS = 500  # of methods that see all data at every step
NUMBERS_AT_A_TIME = 2**24  # outputs over all draws that a prediction holds; longer tables are predicted in parts

# Where the outputs are a place and the noise a multiple of one law, targets can be moved and stretched.
LOCATION_SCALE = (likelihoods.Normal, likelihoods.HeteroscedasticNormal, likelihoods.StudentT)


class _BayesianEstimator(BaseEstimator):
    """What the classifier and the regressor share."""

    def __init__(
        self,
        *,
        method: Method | str | None = None,
        network: nn.Module | Callable[[int, int], nn.Module] | None = None,
        likelihood: Any = None,
        prior: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        num_samples: int = 64,
        standardise: bool = True,
        random_state: int | np.random.RandomState | None = 0,
        device: torch.device | str | None = None,
        verbose: bool = False,
    ):
        self.method = method
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.epochs = epochs
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.standardise = standardise
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- fitting ---

    def _infer(self, x: np.ndarray, targets: Tensor, weights: np.ndarray | None, num_outputs: int) -> None:
        """Standardise the inputs, build the model, and infer its posterior."""
        self.input_mean_, self.input_scale_ = _mean_and_scale(x, weights, self.standardise)
        seed = _seed(self.random_state)
        self.method_ = _method(self.method)
        self.prior_ = priors.fan_in(priors.Normal(scale=1.0)) if self.prior is None else self.prior
        self.network_ = self._build_network(x.shape[1], num_outputs, seed, x.dtype)
        model = BayesianModel(self.network_, self.likelihood_, self.prior_)
        inputs = self._inputs(x, model.dtype)
        data = (inputs, targets.to(model.dtype) if targets.is_floating_point() else targets)
        if weights is not None:
            data = (*data, torch.as_tensor(weights, dtype=model.dtype))
        batch_size = BATCH_SIZE if self.batch_size is None else self.batch_size
        self.posterior_ = fit(
            model, data, self.method_, batch_size=batch_size, seed=seed, device=self.device, progress=bool(self.verbose),
            **self._length(len(x), batch_size),
        )  # fmt: skip

    def _length(self, rows: int, batch_size: int) -> dict[str, int]:
        if self.epochs is not None:
            return {"epochs": self.epochs}
        if self.method_.unfold()[0].full_batch:
            return {"steps": TRANSITIONS}
        return {"steps": max(FEWEST_STEPS, EPOCHS * math.ceil(rows / batch_size))}

    def _build_network(self, num_inputs: int, num_outputs: int, seed: int, dtype: np.dtype) -> nn.Module:
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network)  # what the user does to theirs later is none of this estimator's
        with forked(seed, NETWORK):
            if self.network is None:
                built: Any = MLP(num_inputs, HIDDEN, num_outputs)
            elif callable(self.network):
                built = self.network(num_inputs, num_outputs)
            else:
                built = self.network
        if not isinstance(built, nn.Module):
            raise TypeError(
                f"network must be a torch.nn.Module or a function (num_inputs, num_outputs) -> module, got {built!r}"
            )
        # Tables are float64 unless somebody chose otherwise, and a small network is as quick in it; a GPU is not.
        on_cpu = not torch.cuda.is_available() if self.device is None else torch.device(self.device).type == "cpu"
        return built.to(torch.float64 if on_cpu and dtype == np.float64 else torch.float32)

    def _inputs(self, x: np.ndarray, dtype: torch.dtype) -> Tensor:
        # In float64 until the offset is gone: a year or a price keeps few digits of what varies in float32.
        return torch.as_tensor((x.astype(np.float64) - self.input_mean_) / self.input_scale_, dtype=dtype)

    def _read_weights(self, sample_weight: Any, rows: int) -> np.ndarray | None:
        if sample_weight is None:
            return None
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != (rows,):
            raise ValueError(f"sample_weight must have one number per row, shape ({rows},), got {weights.shape}")
        if (weights < 0).any():
            raise ValueError(f"sample_weight must not be negative, got {weights.min()}")
        if not weights.any():
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return weights

    # --- predicting ---

    def predictive(self, X: Any) -> Predictive:
        """The predictive distribution at X with all its fields: `.epistemic`, `.interval(0.9)`, `.outputs`, ...

        Regression is in the units and the shape of the targets given to `fit`; labels are numbered as in `classes_`.
        """
        return self._predictive(self._read(X))

    def _read(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=(np.float64, np.float32), reset=False)

    def _predictive(self, x: np.ndarray) -> Predictive:
        return self.posterior_.predict(self._inputs(x, self.posterior_.model.dtype), num_samples=self.num_samples)

    def _parts(self, x: np.ndarray) -> Iterator[tuple[slice, Predictive]]:
        """Predictives of consecutive rows, so that the length of a table is no matter of memory."""
        rows = max(1, NUMBERS_AT_A_TIME // (self.num_samples * self.num_outputs_))
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            yield part, self._predictive(x[part])

    # --- copying and storing: the posterior travels as the bytes of its file, data and never code ---

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "posterior_" in state:
            posterior = state.pop("posterior_")
            state["_stored"] = {"file": _file_bytes(posterior), "num_data": posterior.model.num_data}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        stored = state.pop("_stored", None)
        super().__setstate__(state)
        if stored is not None:
            model = BayesianModel(self.network_, self.likelihood_, self.prior_).bound(num_data=stored["num_data"])
            self.posterior_ = _from_file_bytes(stored["file"], model)


class BayesianClassifier(ClassifierMixin, _BayesianEstimator):
    """A Bayesian neural network that predicts labels.

    Args:
        method: A method such as `pl.MultiSWAG()`, or its name as in "multiswag". None is a deep ensemble of five.
        network: A module, a function (num_inputs, num_outputs) -> module, or None for a network with one hidden layer.
        likelihood: None for `pl.likelihoods.Categorical()`; for two classes `Bernoulli()` is possible too.
        prior: None for normal weights whose scale is one over the root of a layer's inputs.
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
        network_, likelihood_, prior_, method_: What was used, defaults filled in. `network_` has the weights from
            before the fit; those after it are in `posterior_`.
        input_mean_, input_scale_: What is subtracted from each input column, and what it is then divided by.
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
        self._infer(x, targets, weights, self.num_outputs_)
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
            raise ValueError(f"y has the label {labels[unseen][0]!r}, which was not in the training data")
        with np.errstate(divide="ignore"):
            return np.log(self._probabilities(x)[np.arange(len(x)), places])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0) -> np.ndarray:
        """Labels drawn from the predictive distribution, shape (rows, n_samples); a column comes from one network."""
        draws = self.predictive(X).sample(n_samples, seed=_seed(random_state))
        return self.classes_[draws.reshape(n_samples, -1).long().numpy().T]

    def _probabilities(self, x: np.ndarray) -> np.ndarray:
        found = np.concatenate([p.probs.numpy() for _, p in self._parts(x)])
        if self.num_outputs_ == 1 and len(self.classes_) == 2:
            return np.hstack([1 - found, found])
        return found / found.sum(1, keepdims=True)  # an average of float32 rows leaves a few last digits


class BayesianRegressor(RegressorMixin, MultiOutputMixin, _BayesianEstimator):
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
        network_, likelihood_, prior_, method_: What was used, defaults filled in. `network_` has the weights from
            before the fit; those after it are in `posterior_`.
        input_mean_, input_scale_: What is subtracted from each input column, and what it is then divided by.
        target_mean_, target_scale_: The same for each target.
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
        self.likelihood_ = likelihoods.Normal(scale="learn") if self.likelihood is None else self.likelihood
        columns = y.reshape(len(y), -1).astype(np.float64)
        stretched = self.standardise and isinstance(self.likelihood_, LOCATION_SCALE)
        self.target_mean_, self.target_scale_ = _mean_and_scale(columns, weights, stretched)
        self.num_outputs_ = _outputs_per_target(self.likelihood_) * columns.shape[1]
        targets = torch.as_tensor((columns - self.target_mean_) / self.target_scale_)
        self._infer(x, targets, weights, self.num_outputs_)
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
        draws = self.predictive(X).sample(n_samples, seed=_seed(random_state))
        return np.moveaxis(np.stack([self._shaped(d) for d in draws]), 0, -1)

    def _predictive(self, x: np.ndarray) -> Predictive:
        standardised = super()._predictive(x)
        if not isinstance(self.likelihood_, LOCATION_SCALE):
            return standardised
        return _moved_and_stretched(standardised, self.target_mean_, self.target_scale_, flat=self.target_axes_ == 1)

    def _shaped(self, values: Tensor) -> np.ndarray:
        found = values.numpy()
        return found.reshape(len(found)) if self.target_axes_ == 1 else found


# --- what was asked for ---


def _method(given: Method | str | None) -> Method:
    if given is None:
        return DeepEnsemble(base=MAP(learning_rate=0.01))
    if isinstance(given, Method):
        return given
    known = _methods_by_name()
    found = known.get(given.replace("-", "").replace("_", "").lower()) if isinstance(given, str) else None
    if found is None:
        listed = ", ".join(sorted(_kebab(c.__name__) for c in known.values()))
        raise ValueError(f"method must be an inference method such as pl.SWAG(), or one of {listed}; got {given!r}")
    return found()


def _methods_by_name() -> dict[str, type[Method]]:
    families = [importlib.import_module(f"{inference.__name__}.{m.name}") for m in pkgutil.iter_modules(inference.__path__)]
    public = [getattr(family, name) for family in families for name in getattr(family, "__all__", ())]
    return {c.__name__.lower(): c for c in public if isinstance(c, type) and issubclass(c, Method)}


def _kebab(class_name: str) -> str:
    return re.sub(r"(?<=[A-Za-z])(?=[A-Z][a-z])", "-", class_name).lower()


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _outputs_per_target(likelihood: Any) -> int:
    own_scale = isinstance(likelihood, likelihoods.CensoredNormal) and likelihood.scale is None
    return 2 if own_scale or isinstance(likelihood, likelihoods.HeteroscedasticNormal) else 1


# --- units ---


def _mean_and_scale(columns: np.ndarray, weights: np.ndarray | None, wanted: bool) -> tuple[np.ndarray, np.ndarray]:
    """What makes each column's weighted mean 0 and deviation 1; nothing, where that is not wanted."""
    columns = columns.astype(np.float64)
    if not wanted:
        return np.zeros(columns.shape[1]), np.ones(columns.shape[1])
    mean = np.average(columns, axis=0, weights=weights)
    scale = np.sqrt(np.average((columns - mean) ** 2, axis=0, weights=weights))
    # A column that never changes has no scale of its own; what rounding leaves of it must not be blown up.
    constant = scale <= 1e-12 * np.maximum(1.0, np.abs(mean))
    return mean, np.where(constant, 1.0, scale)


def _moved_and_stretched(standardised: Predictive, mean: np.ndarray, scale: np.ndarray, flat: bool) -> Predictive:
    """The predictive of mean + scale · y, where y has the standardised one; `flat` drops the axis of a lone target."""
    likelihood: Any = standardised.likelihood
    outputs, unknowns = standardised.outputs, dict(standardised.unknowns)
    if isinstance(likelihood, likelihoods.HeteroscedasticNormal):
        # Every draw has its own scale at every row: normal noise whose scale is known.
        noise = standardised._each(lambda own, out: own.distribution(out).stddev)
        outputs = outputs.chunk(2, -1)[0]
        likelihood = likelihoods.Normal(scale="learn")
    elif "scale" in unknowns:
        noise = unknowns["scale"].reshape(-1, *[1] * (outputs.dim() - 1)).expand_as(outputs)
    else:
        noise = torch.as_tensor(likelihood.scale).to(outputs).expand_as(outputs)
        likelihood = copy.copy(likelihood)
        object.__setattr__(likelihood, "scale", likelihoods.Normal(scale="learn").scale)
    stretch, shift = (torch.as_tensor(v, dtype=outputs.dtype, device=outputs.device) for v in (scale, mean))
    outputs, unknowns["scale"] = outputs * stretch + shift, noise * stretch
    if flat:
        outputs, unknowns["scale"] = outputs.squeeze(-1), unknowns["scale"].squeeze(-1)
    return Predictive(
        outputs, likelihood, weights=standardised.weights, unknowns=unknowns, strata=standardised.strata, exact=standardised.exact
    )


# --- a posterior as bytes ---


def _file_bytes(posterior: Posterior) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior"
        posterior.save(path)
        return path.read_bytes()


def _from_file_bytes(content: bytes, model: BayesianModel) -> Posterior:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior"
        path.write_bytes(content)
        return load(path, model)
