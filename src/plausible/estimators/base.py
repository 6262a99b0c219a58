"""What the classifier and the regressor share: building the model, inferring, predicting in parts, storing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ..core.files.posterior_file import load
from ..core.fit import fit
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.posteriors import Posterior
from ..core.predictive import Predictive
from .choices import batch_size_for, dtype_for, method_for, network_for, seed_from, steps_for
from .units import mean_and_scale

NUMBERS_AT_A_TIME = 2**24  # outputs over all draws that a prediction holds; longer tables are predicted in parts


class BayesianEstimator(BaseEstimator):
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

    def _infer(self, x: np.ndarray, targets: Tensor, weights: np.ndarray | None, default_prior: Any) -> None:
        """Standardise the inputs, build the model of `likelihood_`, and infer its posterior."""
        seed = seed_from(self.random_state)
        self.input_mean_, self.input_scale_ = mean_and_scale(x, weights, self.standardise)
        self.method_ = method_for(self.method)
        self.prior_ = default_prior if self.prior is None else self.prior
        self.network_ = network_for(self.network, x.shape[1], self.num_outputs_, seed, dtype_for(x.dtype, self.device))
        model = BayesianModel(self.network_, self.likelihood_, self.prior_)
        data = [self._inputs(x, model.dtype), targets.to(model.dtype) if targets.is_floating_point() else targets]
        if weights is not None:
            data.append(torch.as_tensor(weights, dtype=model.dtype))
        batch_size = batch_size_for(len(x)) if self.batch_size is None else self.batch_size
        steps = steps_for(self.method_, len(x), batch_size) if self.epochs is None else None
        self.posterior_ = fit(
            model, tuple(data), self.method_, epochs=self.epochs, steps=steps, batch_size=batch_size, seed=seed,
            device=self.device, progress=bool(self.verbose),
        )  # fmt: skip

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

        Labels are numbered as in `classes_`. Regression is in the units of the targets given to `fit`, and in their
        shape; likelihoods that see targets as they are keep an axis for a lone target, (rows, 1).
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
