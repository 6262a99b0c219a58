"""Targets whose moments are known, and what draws from them must show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tests.oracles import assert_chains
from torch import Tensor

import plausible as pl
from plausible.core.diagnostics import r_hat

DF = 10.0  # of the Student-t: eight moments exist, so that the error of a second one can be told from draws


def reflected(spectrum: Tensor) -> Tensor:
    """A covariance of this spectrum, its axes turned by the reflection at (1, ..., 1): the same without any library."""
    count = len(spectrum)
    mirror = torch.eye(count, dtype=torch.float64) - 2.0 / count
    return mirror @ torch.diag(spectrum) @ mirror


def conditioned(size: int, condition: float) -> Tensor:
    """Variances from 1 down to 1 / condition."""
    return reflected(torch.logspace(0, -math.log10(condition), size, dtype=torch.float64))


CORRELATED = torch.tensor([[1.0, 0.75], [0.75, 1.0]], dtype=torch.float64)
ILL = conditioned(10, 100.0)
T_SHAPE = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
MEANS = {
    "correlated": torch.tensor([1.0, -2.0], dtype=torch.float64),
    "ill": torch.linspace(-1.0, 1.0, 10, dtype=torch.float64),
    "student_t": torch.tensor([0.5, 0.0], dtype=torch.float64),
}
COVARIANCES = {"correlated": CORRELATED, "ill": ILL, "student_t": T_SHAPE * DF / (DF - 2.0)}
LAWS = (*MEANS, "worse")
FOURTH = {"student_t": 3.0 * (DF - 2.0) / (DF - 4.0)}  # of a standardised coordinate; a normal's is 3
WORSE = torch.tensor([3.0, 0.0, -3.0], dtype=torch.float64)  # the mean of a normal of a condition that is told


def normal(mean: Tensor, covariance: Tensor) -> pl.LogDensity:
    """N(mean, covariance) of one tensor "x"."""
    precision = torch.linalg.inv(covariance)
    return pl.LogDensity(lambda p: -0.5 * (p["x"] - mean) @ precision @ (p["x"] - mean), {"x": torch.zeros_like(mean)})


def laws_at_once(names: Sequence[str], condition: float) -> pl.LogDensity:
    """Some of the four laws (`worse` of the condition that is told), all independent: one run tests them all."""
    covariances = {"correlated": CORRELATED, "ill": ILL, "worse": conditioned(3, condition)}
    precisions = {k: torch.linalg.inv(c) for k, c in covariances.items() if k in names}
    means = {**MEANS, "worse": WORSE}
    shape = torch.linalg.inv(T_SHAPE)

    def log_prob(p: dict[str, Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        if "student_t" in p:
            z = p["student_t"] - means["student_t"]
            total = -0.5 * (DF + 2.0) * torch.log1p(z @ shape @ z / DF)
        for k, precision in precisions.items():
            z = p[k] - means[k]
            total = total - 0.5 * z @ precision @ z
        return total

    return pl.LogDensity(log_prob, {k: torch.zeros_like(means[k]) for k in names})


def chains_of(posterior: Any, name: str = "x") -> Tensor:
    """(C, K, P) of one unknown."""
    return torch.stack([c.draws[name].reshape(len(c), -1) for c in posterior.components])


def statistic(posterior: Any, name: str) -> Tensor:
    """(C, K) of what was noted."""
    return torch.stack([c.statistics[name] for c in posterior.components])


def assert_law(draws: Tensor, mean: Tensor, covariance: Tensor, min_ess: float = 8000.0, fourth: float = 3.0) -> None:
    """R-hat below 1.01, and mean, deviations and correlations within four Monte Carlo errors."""
    worst = float(r_hat(draws).max())
    assert worst < 1.01, f"R-hat is {worst:.3f}"
    assert_chains(draws, mean, covariance, min_ess=min_ess, fourth=fourth)


def assert_laws(posterior: Any, names: Sequence[str], condition: float) -> None:
    """What `assert_law` asks of every one of them."""
    covariances = {**COVARIANCES, "worse": conditioned(3, condition)}
    for name in names:
        mean = {**MEANS, "worse": WORSE}[name]
        assert_law(chains_of(posterior, name), mean, covariances[name], fourth=FOURTH.get(name, 3.0))
