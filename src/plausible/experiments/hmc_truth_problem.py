"""The problems on which methods are held against long chains: data, network, prior, and the chains themselves."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..core.method import Method
from ..core.posteriors import Posterior
from ..core.predictive import Predictive
from ..datasets import Dataset
from ..report.settings import Dense, Setting, model_for
from ..report.truth import FEWEST_DRAWS, LARGEST_R_HAT, distances, mixing
from ..tabular.training import even_batch
from ..weights.rng import generator
from . import hmc_truth_store as store
from .hmc_truth_store import Truth

SPLIT = 0x73706C69  # the stream of a split's number that orders the digits
RUN = 100_000  # seeds between two runs of the chains; no method has a seed as large
EACH = 1000  # seeds between two splits
JUDGED = 200  # test examples by whose predictions chains are judged


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data, a network with one hidden layer of tanh units, and how long its posterior is sampled.

    Attributes:
        data: "digits", or the folder of a UCI set.
        hidden: Width of the hidden layer.
        splits: How many splits.
        train: Digits to train on; the rest are predicted.
        limit: Keep only so many examples of each part.
        chains: Of HMC on each split.
        transitions: Of each chain, warm-up included.
        trajectory_length: Of HMC. With 1, a chain on concrete makes an independent draw of a prediction in about 12 transitions.
        thin: Keep every so many-th draw.
        samples: Draws that a prediction averages over, of posteriors that are not finite.
    """

    data: str
    hidden: int = 50
    splits: int = 5
    train: int = 500
    limit: int | None = None
    chains: int = 8
    transitions: int = 1500
    trajectory_length: float = 1.0
    thin: int = 9
    samples: int = 512

    @property
    def draws(self) -> int:
        """Those of all chains of a split, or more: so a truth's prediction leaves none out."""
        return self.chains * self.transitions


def load_splits(problem: Problem, root: Path | None) -> list[Dataset]:
    """The data of every split."""
    if problem.data == "digits":
        return [_digits(problem, split) for split in range(problem.splits)]
    return [pl.datasets.uci(problem.data, split, root, limit=problem.limit) for split in range(problem.splits)]


def _digits(problem: Problem, split: int) -> Dataset:
    """A few hundred digits to learn from and many to predict: posteriors differ, and what they differ by is well known."""
    data = pl.datasets.digits()
    x, y = torch.cat([data.x_train, data.x_test]), torch.cat([data.y_train, data.y_test])
    order = torch.randperm(len(x), generator=generator(split, SPLIT))
    train, test = order[: problem.train][: problem.limit], order[problem.train :][: problem.limit]
    return replace(data, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def model_of(problem: Problem, data: Dataset) -> pl.BayesianModel:
    """What `plausible compare` believes of such data, with a network of tanh units: one model for every method."""
    return model_for(data, Setting(load=lambda: data, network=Dense((problem.hidden,), "tanh")), seed=0)


def seeds_of(problem: Problem, members: int, start: int = 0) -> list[int]:
    """A seed for each member of every split."""
    return [start + EACH * split + member for split in range(problem.splits) for member in range(members)]


def fitted(
    problem: Problem,
    sets: Sequence[Dataset],
    method: Method,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    members: int | None = None,
    start: int = 0,
) -> list[Posterior]:
    """A posterior for every split, the networks of all splits and members in one vectorised run."""
    base, own = method.unfold()
    count = members or own or 1
    found = pl.fit_many(
        model_of(problem, sets[0]), [split.train for split in sets for _ in range(count)], base,
        seed=seeds_of(problem, count, start), batch_size=even_batch(len(sets[0].x_train)), init="reset", epochs=epochs,
        steps=steps,
    )  # fmt: skip
    if members is None and own is None:
        return found
    return [pl.mixture(found[i : i + count]) for i in range(0, len(found), count)]


@functools.lru_cache(maxsize=2)  # both runs of a problem, whose rows follow one another
def truths(problem: Problem, root: Path | None, run: int, cache: Path | None = None) -> tuple[Truth, ...]:
    """Long chains on every split, or what an earlier run of them left.

    Args:
        problem: What they are the truth of.
        root: The folder of data sets.
        run: Numbers repetitions with seeds of their own.
        cache: Where truths are kept; None keeps none.
    """
    sets = load_splits(problem, root)
    sampler = pl.HMC(trajectory_length=problem.trajectory_length, thin=problem.thin)
    if cache is None:
        return _sampled(problem, sets, sampler, run)
    model = model_of(problem, sets[0])
    told = store.origin(sampler, model, sets, {"run": run, **asdict(problem)})
    path = store.path_of(cache, f"{problem.data}-{run}", told)
    kept = store.read(path, model.likelihood, told)
    if kept is not None:
        return kept
    found = _sampled(problem, sets, sampler, run)
    store.write(path, found, told)
    return found


def _sampled(problem: Problem, sets: Sequence[Dataset], sampler: Method, run: int) -> tuple[Truth, ...]:
    chains = fitted(
        problem, sets, sampler, members=problem.chains, start=(run + 1) * RUN, steps=problem.transitions
    )  # fmt: skip
    return tuple(
        Truth(
            predictive=p.predict(s.x_test, num_samples=problem.draws), mixing=agreement_of_chains(p, s.x_test[:JUDGED])
        )
        for p, s in zip(chains, sets, strict=True)
    )


def agreement_of_chains(posterior: Any, x: Tensor) -> dict[str, float]:
    """R-hat and effective draws of what is predicted: the middle, the worst twentieth, and the share that is well enough."""
    spread, worth = mixing(posterior, x)
    fine = (spread < LARGEST_R_HAT) & (worth >= FEWEST_DRAWS)
    return {
        "chains": len(posterior.components),
        "draws": len(posterior.components[0]),
        "r_hat": round(float(spread.quantile(0.5)), 4),
        "r_hat_95": round(float(spread.quantile(0.95)), 4),
        "ess_5": round(float(worth.quantile(0.05)), 1),
        "share": round(float(fine.double().mean()), 4),
    }


def scored(found: Predictive, truth: Predictive, data: Dataset) -> dict[str, float]:
    """How far a prediction is from the truth's, and how good it is; numbers in the target's own units."""
    y = data.y_test
    log_likelihood = float(found.log_prob(y).double().mean())
    apart = distances(found, truth)
    if data.task == "classification":
        return {**apart, "accuracy": float(pl.metrics.accuracy(found.probs, y)), "log_likelihood": log_likelihood}
    return {
        **apart,
        "centre": float((found.mean - truth.mean).abs().mean() / truth.std.mean()),
        "rmse": float(pl.metrics.rmse(found.mean, y)) * data.target_scale,
        "log_likelihood": log_likelihood - math.log(data.target_scale),  # the density of scale · y is y's divided by it
    }
