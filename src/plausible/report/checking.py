"""Is a method right on this machine? Its posterior against a closed form, and its draws against simulations of the model itself.

The problem is linear regression with correlated inputs, few data and a prior that matters: its posterior is known exactly, and
dropping the prior, transposing a Cholesky factor, miscounting N or scaling noise wrongly each moves it by far more than the
Monte Carlo error. What a method claims decides what it is held to: the whole posterior, the best independent one, or its centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.diagnostics import ess
from ..core.fit import fit, fit_many
from ..core.likelihoods import Normal as NormalNoise
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.posteriors import Samples
from ..core.priors import Normal
from ..weights.rng import generator

COUNT, INPUTS = 24, 3
NOISE, PRIOR = 1.0, 0.5  # a prior as narrow as the data are telling
DRAWS = 20_000  # from posteriors that can be drawn from without end
ERRORS = 4.0  # Monte Carlo errors that chance is allowed
SIMULATED = 10  # examples of each simulated data set
CLAIMS = ("posterior", "independent", "centre")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method, how to run it, and what it is held to.

    Attributes:
        method: With numbers for this problem.
        claim: "posterior": mean, standard deviations and correlations; "independent": the best posterior of independent
            weights, whose variances are 1 / Λᵢᵢ; "centre": the mean alone, within a standard deviation.
        slack: What the method may be off by at a finite step size, as a share of a standard deviation.
        steps: Updates.
        chains: Independent runs.
        batch_size: Examples of an update, of methods that take batches.
        simulations: Data sets for simulation-based calibration; none where the claim is not the posterior.
    """

    method: Method
    claim: str = "posterior"
    slack: float = 0.0
    steps: int = 1000
    chains: int = 1
    batch_size: int = COUNT
    simulations: int = 0

    def __post_init__(self):
        if self.claim not in CLAIMS:
            raise ValueError(f"claim must be any of {', '.join(CLAIMS)}, got {self.claim!r}")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check of one method gave.

    Attributes:
        name: Of the method.
        claim: What it was held to.
        numbers: How far it is off, by what was looked at, each beside what is allowed.
        failures: What is wrong, in words; none if the method is right.
    """

    name: str
    claim: str
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether nothing speaks against the method."""
        return not self.failures


@dataclass(frozen=True)
class Problem:
    """Data with a known posterior."""

    x: Tensor
    y: Tensor
    mean: Tensor
    covariance: Tensor

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        return self.x, self.y

    @property
    def independent(self) -> Tensor:
        """Variances of the best posterior with independent weights."""
        return 1 / torch.linalg.inv(self.covariance).diagonal()


def problem(seed: int = 0) -> Problem:
    """Regression with correlated inputs, and its posterior in closed form."""
    rng = generator(seed, 0x636865636B)
    mixing = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.45, 0.0], [-0.7, 0.3, 0.6]], dtype=torch.float64)
    x = torch.randn(COUNT, INPUTS, generator=rng, dtype=torch.float64) @ mixing.T
    weights = torch.tensor([0.8, -0.5, 0.3], dtype=torch.float64)
    y = x @ weights + NOISE * torch.randn(COUNT, generator=rng, dtype=torch.float64)
    precision = x.T @ x / NOISE**2 + torch.eye(INPUTS, dtype=torch.float64) / PRIOR**2
    covariance = torch.linalg.inv(precision)
    return Problem(x, y[:, None], covariance @ (x.T @ y) / NOISE**2, covariance)


def linear_model() -> BayesianModel:
    """The model of the problem."""
    network = nn.Linear(INPUTS, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        network.weight.zero_()
    return BayesianModel(network, NormalNoise(scale=NOISE), prior=Normal(scale=PRIOR))


def check(name: str, subject: Subject, seed: int = 0, model: Callable[[], BayesianModel] = linear_model) -> Finding:
    """Hold one method against the closed form and, where it has simulations to run, against those."""
    truth = problem(seed)
    posterior = fit(
        model(), truth.data, subject.method, steps=subject.steps, num_modes=subject.chains, batch_size=subject.batch_size,
        seed=seed, progress=False,
    )  # fmt: skip
    numbers = _against_closed_form(posterior, truth, subject)
    if subject.simulations:
        numbers |= simulation_based(subject, seed, model)
    failures = tuple(
        f"{what} is off by {found:.3g}, where {allowed:.3g} is allowed"
        for what, (found, allowed) in numbers.items()
        if not found <= allowed
    )
    return Finding(name=name, claim=subject.claim, numbers=numbers, failures=failures)


# --- against the closed form ---


def _against_closed_form(posterior: Any, truth: Problem, subject: Subject) -> dict[str, tuple[float, float]]:
    chains = _drawn(posterior)
    flat = chains.flatten(0, 1)
    deviation = truth.covariance.diagonal().sqrt()
    expected = truth.independent.sqrt() if subject.claim == "independent" else deviation
    off = (flat.mean(0) - truth.mean).abs() / deviation
    if subject.claim == "centre":
        return {"mean": (float(off.max()), 1.0)}
    worth = _worth(posterior, chains)
    numbers = {"mean": _worst(off, ERRORS * worth.rsqrt() + subject.slack)}
    # Of n independent normal draws the standard deviation has the relative error 1 / √(2n), a correlation 1 / √n at most.
    ratio = (flat.std(0) / expected - 1).abs()
    numbers["sd"] = _worst(ratio, ERRORS * (2 * _worth(posterior, (chains - truth.mean) ** 2)).rsqrt() + subject.slack)
    correlation = truth.covariance / torch.outer(deviation, deviation)
    if subject.claim == "independent":
        correlation = torch.eye(INPUTS, dtype=torch.float64)
    apart = (torch.corrcoef(flat.T) - correlation).abs().max()
    numbers["correlation"] = (float(apart), ERRORS / math.sqrt(float(worth.min())) + subject.slack)
    return numbers


def _drawn(posterior: Any) -> Tensor:
    """(chains, draws, weights), beside the closed form, wherever the runs were."""
    parts = posterior.components
    if all(isinstance(part, Samples) for part in parts):
        length = min(len(part) for part in parts)
        return torch.stack([part.draws["weight"][:length].reshape(length, -1) for part in parts]).double().cpu()
    return posterior.sample(DRAWS, seed=1)["weight"].reshape(1, DRAWS, -1).double().cpu()


def _worth(posterior: Any, chains: Tensor) -> Tensor:
    """Of how many independent draws each column's mean is."""
    if isinstance(posterior.components[0], Samples):
        return ess(chains, "mean")
    return torch.full((chains.shape[-1],), float(DRAWS), dtype=torch.float64)


def _worst(found: Tensor, allowed: Tensor) -> tuple[float, float]:
    place = int((found / allowed).argmax())
    return float(found[place]), float(allowed[place])


# --- against simulations (Talts et al., 2018) ---


def simulation_based(
    subject: Subject, seed: int, model: Callable[[], BayesianModel] = linear_model
) -> dict[str, tuple[float, float]]:
    """Weights drawn from the prior have uniform ranks among draws given the data they make; mean and spread of ranks, as z."""
    rng, count = generator(seed, 0x736263), subject.simulations
    truth = PRIOR * torch.randn(count, INPUTS, generator=rng, dtype=torch.float64)
    x = problem(seed).x[:SIMULATED]
    y = truth @ x.T + NOISE * torch.randn(count, SIMULATED, generator=rng, dtype=torch.float64)
    sets = [(x, row[:, None]) for row in y]
    posteriors = fit_many(
        model(), sets, subject.method, steps=subject.steps, batch_size=min(subject.batch_size, SIMULATED), seed=seed,
        progress=False,
    )  # fmt: skip
    places = torch.stack([_rank(p, w) for p, w in zip(posteriors, truth, strict=True)])
    z_mean = (places.mean(0) - 0.5).abs() * math.sqrt(12 * count)
    z_spread = ((places - 0.5).square().mean(0) - 1 / 12).abs() * math.sqrt(180 * count)
    return {"rank mean (z)": (float(z_mean.max()), ERRORS), "rank spread (z)": (float(z_spread.max()), ERRORS)}


def _rank(posterior: Any, truth: Tensor) -> Tensor:
    """Where the truth lies among draws that are thinned until they are nearly independent, in (0, 1)."""
    draws = _drawn(posterior).flatten(0, 1)
    if isinstance(posterior, Samples):
        draws = draws[:: max(1, math.ceil(len(draws) / float(ess(draws[None], "mean").min())))]
    below = (draws < truth).double().sum(0)
    return (below + 0.5) / (len(draws) + 1)


def check_all(
    subjects: Mapping[str, Subject], seed: int = 0, begin: Callable[[str], None] | None = None
) -> Sequence[Finding]:
    """Check one method after another; `begin` is told each name."""
    findings = []
    for name, subject in subjects.items():
        if begin is not None:
            begin(name)
        try:
            findings.append(check(name, subject, seed))
        except Exception as error:  # whatever it is, the others are still to be checked
            told = f"it stopped with {type(error).__name__}: {error}"
            findings.append(Finding(name=name, claim=subject.claim, failures=(told,)))
    return findings
