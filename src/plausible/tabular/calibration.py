"""One number that makes predictions as sure as they deserve, found on rows that the network had not seen.

Networks know their training rows too well to judge their own errors by them. So the training rows are dealt into folds,
and each is predicted by other networks, which have held-out rows in its place: as many rows as the network to be
calibrated, since fewer would err more. No error on a held-out row is looked at, so these can still judge the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.fit import fit, fit_many
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.posteriors import Mixture, Posterior
from ..core.predictive import Predictive
from .targets import Task

FOLDS = 5
FEWEST_ROWS = 30  # that must be predicted: fewer do not know a coverage of 90 % to within six per cent
MOST_ROWS = 5000  # with which a coverage of 90 % is known to half a per cent
NARROWEST, WIDEST = 0.1, 10.0  # factors on a spread
COLDEST, HOTTEST = 0.05, 20.0  # temperatures
LEVEL = 0.9  # of the interval whose coverage is made right
WEIGHTS_AT_A_TIME = 2**22  # of all networks that are trained side by side
STREAM = 0x63616C69  # the stream of a seed that deals the folds and seeds their networks


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What predictions are changed by.

    Attributes:
        task: Numbers have their spread multiplied, classes their logits divided.
        factor: By this. Above 1, predictions become less sure; 1 changes nothing.
        rows: How many rows it was found on.
    """

    task: Task
    factor: float
    rows: int

    def apply(self, predictive: Predictive) -> Predictive:
        """The predictive with all of its spread, noise and disagreement alike, or with tempered logits."""
        if self.task == "regression":
            return stretched(predictive, self.factor)
        return tempered(predictive, self.factor)

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"task": self.task, "factor": self.factor, "rows": self.rows}

    @staticmethod
    def from_data(data: dict[str, Any]) -> Calibration:
        """The inverse of `as_data`."""
        return Calibration(task=data["task"], factor=data["factor"], rows=data["rows"])


# --- what a factor does ---


def stretched(predictive: Predictive, factor: float) -> Predictive:
    """The predictive of mean + factor · (y − mean): variances grow by factor², so their parts still add up."""
    outputs = predictive.mean + factor * (predictive.outputs - predictive.mean)
    return _changed(predictive, outputs, {"scale": predictive.unknowns["scale"] * factor})


def tempered(predictive: Predictive, temperature: float) -> Predictive:
    """The predictive with every network's logits divided by a temperature."""
    return _changed(predictive, predictive.outputs / temperature, predictive.unknowns)


def _changed(predictive: Predictive, outputs: Tensor, unknowns: Any) -> Predictive:
    return Predictive(
        outputs, predictive.likelihood, weights=predictive.weights, unknowns=unknowns, strata=predictive.strata,
        exact=predictive.exact,
    )  # fmt: skip


# --- finding it ---


def spread_factor(predictives: list[Predictive], targets: list[Tensor]) -> float:
    """The least stretch with which the intervals hold their share of these values and of one more.

    An interval stretched about its mean holds a value if the stretch is at least their ratio of distances from the mean.
    The ⌈(n + 1) · level⌉-th ratio, not the ⌈n · level⌉-th: among exchangeable rows it holds the next one with
    probability `LEVEL` (Vovk et al., 2005).
    """
    ratios = torch.cat([_ratios(p, y) for p, y in zip(predictives, targets, strict=True)]).double()
    rank = min(math.ceil((len(ratios) + 1) * LEVEL), len(ratios))
    return min(max(float(ratios.kthvalue(rank).values), NARROWEST), WIDEST)


def _ratios(predictive: Predictive, y: Tensor) -> Tensor:
    lower, upper = predictive.interval(LEVEL)
    error = y - predictive.mean
    side = torch.where(error > 0, upper - predictive.mean, predictive.mean - lower)
    # A single wild draw can pull the mean out of its own interval: no stretch about it helps.
    return torch.where(side > 0, error.abs() / side, torch.inf).flatten()


def temperature(predictives: list[Predictive], targets: list[Tensor]) -> float:
    """The temperature under which these labels are most probable (Guo et al., 2017).

    The labels are smoothed by 1 / (n + 2) as in Platt (1999): n right answers out of n would ask for 0.
    """
    from scipy.optimize import minimize_scalar  # here, because it takes long to import and predictions do without

    smoothing = 1 / (sum(map(len, targets)) + 2)

    def loss(log_temperature: float) -> float:
        total = 0.0
        for predictive, labels in zip(predictives, targets, strict=True):
            log_probs = _log_probs(predictive, math.exp(log_temperature))
            total -= float((1 - smoothing) * log_probs.gather(1, labels.unsqueeze(1)).sum())
            total -= float(smoothing * log_probs.mean(1).sum())
        return total

    return math.exp(minimize_scalar(loss, bounds=(math.log(COLDEST), math.log(HOTTEST)), method="bounded").x)


def _log_probs(predictive: Predictive, temperature: float) -> Tensor:
    each = torch.log_softmax(predictive.outputs.double() / temperature, -1)
    return torch.logsumexp(each + predictive.weights.double().log()[:, None, None], 0)


def learn_calibration(
    model: BayesianModel,
    data: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    method: Method,
    task: Task,
    *,
    num_samples: int,
    seed: int,
    **length: Any,
) -> Calibration | None:
    """Find the factor by cross-fitting the training rows; None where they are too few.

    Args:
        model: The model that is fitted to all training rows.
        data: Their inputs and targets.
        held_out: Those of the held-out rows, which take the places of a fold; none is predicted.
        method: The method it is fitted by.
        task: What is predicted.
        num_samples: Draws that a prediction averages over.
        seed: Of the folds and of their networks.
        length: What else `fit` is told.
    """
    x, y = data
    folds = deal(y, len(held_out[0]), task, seed)
    count = sum(map(len, folds))
    if count < FEWEST_ROWS:
        return None
    parts = [tuple(_exchanged(*pair, fold) for pair in zip(data, held_out, strict=True)) for fold in folds]
    posteriors = _cross_fitted(model, parts, method, seed, length)
    predictives = [p.predict(x[fold], num_samples=num_samples) for p, fold in zip(posteriors, folds, strict=True)]
    factor = (spread_factor if task == "regression" else temperature)(predictives, [y[fold] for fold in folds])
    return Calibration(task=task, factor=factor, rows=count)


def deal(targets: Tensor, held_out: int, task: Task, seed: int) -> list[Tensor]:
    """Folds of one size without a row in two of them, as large as the held-out part; classes keep their shares."""
    rows = len(targets)
    wanted = held_out or rows // FOLDS
    count = max(1, min(FOLDS, round(rows / wanted))) if wanted else 1
    draw = np.random.default_rng([seed, STREAM])
    order = draw.permutation(rows)
    if task == "classification":
        order = order[np.argsort(targets.numpy()[order], kind="stable")]
    size = min(wanted, rows // count, MOST_ROWS // count)
    return [torch.from_numpy(draw.permutation(order[fold::count])[:size]) for fold in range(count)]


def _exchanged(training: Tensor, held_out: Tensor, fold: Tensor) -> Tensor:
    """The training rows with others in the places of a fold; without the fold, where there are no others."""
    if len(held_out):
        return training.index_copy(0, fold, held_out[: len(fold)])
    kept = torch.ones(len(training), dtype=torch.bool)
    kept[fold] = False
    return training[kept]


def _cross_fitted(
    model: BayesianModel, parts: list[Any], method: Method, seed: int, length: dict[str, Any]
) -> Iterator[Posterior]:
    """For every part a posterior, as the method would give it."""
    base, own_modes = method.unfold()
    modes = own_modes or 1
    seeds = np.random.SeedSequence([seed, STREAM]).generate_state(modes * len(parts)).tolist()
    side_by_side = max(1, WEIGHTS_AT_A_TIME // (modes * sum(w.numel() for w in model.start.values())))
    for start in range(0, len(parts), side_by_side):
        some = parts[start : start + side_by_side]
        own_seeds = seeds[start * modes : (start + len(some)) * modes]
        try:
            each = [part for part in some for _ in range(modes)]
            runs = fit_many(model, each, base, seed=own_seeds, init="reset", **length)
        except NotSupported:
            for part, own_seed in zip(some, own_seeds[::modes], strict=True):
                yield fit(model, part, method, seed=own_seed, **length)
            continue
        for first in range(0, len(runs), modes):
            yield Mixture(runs[first : first + modes]) if own_modes is not None else runs[first]
