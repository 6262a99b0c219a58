"""Answers known without the library: conjugate regression, normal targets, and how far chance may carry an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import plausible as pl

FOUR = 4.0  # Monte Carlo errors; one correct comparison in 16,000 fails, and seeds are fixed


@dataclass(frozen=True)
class LinearRegression:
    """y = x · w + N(0, noise²), w ~ N(prior_mean, prior_covariance): everything in closed form.

    The design has one column per unknown; `bias` appends one of ones, which is the last unknown.
    """

    x: Tensor
    y: Tensor
    noise: float
    prior_mean: Tensor
    prior_covariance: Tensor
    weights: Tensor
    bias: bool = True

    @property
    def design(self) -> Tensor:
        return torch.cat([self.x, torch.ones_like(self.x[:, :1])], 1) if self.bias else self.x

    @property
    def covariance(self) -> Tensor:
        a = self.design
        precision = a.T @ (self.weights[:, None] * a) / self.noise**2 + torch.linalg.inv(self.prior_covariance)
        return torch.linalg.inv(precision)

    @property
    def mean(self) -> Tensor:
        pull = torch.linalg.solve(self.prior_covariance, self.prior_mean)
        return self.covariance @ (self.design.T @ (self.weights * self.y) / self.noise**2 + pull)

    @property
    def log_evidence(self) -> float:
        """log N(y; A m, σ² I + A S Aᵀ), for data that all have weight one."""
        a = self.design
        covariance = self.noise**2 * torch.eye(len(self.y), dtype=a.dtype) + a @ self.prior_covariance @ a.T
        return torch.distributions.MultivariateNormal(a @ self.prior_mean, covariance).log_prob(self.y).item()

    def part(self, rows: slice, prior: LinearRegression | None = None) -> LinearRegression:
        """Some of the data, with the posterior of others as the prior."""
        mean, covariance = (self.prior_mean, self.prior_covariance) if prior is None else (prior.mean, prior.covariance)
        return LinearRegression(self.x[rows], self.y[rows], self.noise, mean, covariance, self.weights[rows], self.bias)

    def data(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return self.x.to(dtype), self.y[:, None].to(dtype)

    def model(self, dtype: torch.dtype = torch.float64, prior=None, likelihood=None) -> pl.BayesianModel:
        """The same belief, said in the library's words; the prior must be N(0, s²) unless another is given."""
        network = nn.Linear(self.x.shape[1], 1, bias=self.bias).to(dtype)
        with torch.no_grad():
            for p in network.parameters():
                p.zero_()
        if prior is None:
            prior = pl.priors.Normal(scale=self.prior_covariance[0, 0].sqrt().item())
        return pl.BayesianModel(network, likelihood or pl.likelihoods.Normal(scale=self.noise), prior=prior)

    def params(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector in the order of the design as the network's weights."""
        inputs = self.x.shape[1]
        return {"weight": vector[None, :inputs], **({"bias": vector[inputs:]} if self.bias else {})}


def linear_regression(
    n: int = 20,
    inputs: int = 3,
    noise: float = 0.5,
    scatter: float | None = None,
    prior_scale: float = 1.0,
    seed: int = 0,
    bias: bool = True,
) -> LinearRegression:
    """Correlated inputs of different sizes, so that the posterior is neither round nor aligned with the axes.

    `noise` is what the model believes; `scatter`, if given, is what the data really have.
    """
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    x = draw(n, inputs) @ (torch.eye(inputs, dtype=torch.float64) + 0.3 * draw(inputs, inputs))
    unknowns = inputs + bias
    truth = prior_scale * draw(unknowns)
    clean = x @ truth[:inputs] + (truth[-1] if bias else 0.0)
    y = clean + (noise if scatter is None else scatter) * draw(n)
    zero, eye = torch.zeros(unknowns, dtype=torch.float64), torch.eye(unknowns, dtype=torch.float64)
    return LinearRegression(x, y, noise, zero, prior_scale**2 * eye, torch.ones(n, dtype=torch.float64), bias)


def vector_of(params: dict[str, Tensor], leading: int = 0) -> Tensor:
    """All tensors as one vector, in the order of the dictionary; `leading` axes stay."""
    return torch.cat([p.reshape(*p.shape[:leading], -1) for p in params.values()], -1)


def anisotropic_covariance(size: int, condition: float = 400.0, seed: int = 0) -> Tensor:
    """A dense covariance with the given condition number and no axis of its own."""
    rng = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=torch.float64))
    spectrum = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    return q @ torch.diag(spectrum) @ q.T


# --- how far chance may carry an estimate ---


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor, errors: float = 5.0) -> None:
    """Mean and every covariance of independent normal draws (K, P), each within its Monte Carlo error.

    sd of a sample mean: √(Σᵢᵢ / K); of a sample covariance: √((Σᵢᵢ Σⱼⱼ + Σᵢⱼ²) / K). Five errors, since a matrix has
    many entries. Directions of small variance count as much as others: the same is asked of the whitened draws.
    """
    draws, mean, covariance = draws.double(), mean.double(), covariance.double()
    _assert_entries(draws - mean, covariance, errors)
    chol = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(chol, (draws - mean).T, upper=False).T
    _assert_entries(white, torch.eye(len(mean), dtype=torch.float64), errors)


def _assert_entries(centred: Tensor, covariance: Tensor, errors: float) -> None:
    count, variance = centred.shape[0], covariance.diagonal()
    off = (centred.mean(0).abs() / (variance / count).sqrt()).max().item()
    assert off < errors, f"a mean is {off:.1f} Monte Carlo errors off"
    spread = ((variance[:, None] * variance[None, :] + covariance**2) / count).sqrt()
    off = ((centred.T @ centred / count - covariance).abs() / spread).max().item()
    assert off < errors, f"a covariance is {off:.1f} Monte Carlo errors off"


def autocorrelation_time(chain: np.ndarray) -> float:
    """Integrated autocorrelation time of chains (C, K) by Sokal's window: independent of the library's own estimate."""
    centred = chain - chain.mean()
    count = chain.shape[1]
    spectrum = np.abs(np.fft.rfft(centred, 2 * count, axis=1)) ** 2
    covariance = np.fft.irfft(spectrum, axis=1)[:, :count].mean(0)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    window = np.arange(count) >= 6 * times
    return float(times[np.argmax(window)]) if window.any() else float(times[-1])


def effective_size(chains: np.ndarray) -> float:
    """How many independent draws the mean of chains (C, K) is worth."""
    return chains.size / max(autocorrelation_time(chains), 1e-12)


def assert_chains(
    draws: Tensor, mean: Tensor, covariance: Tensor, min_ess: float = 8000.0, fourth: float = 3.0
) -> None:
    """Mean, deviations and correlations of an elliptical target from chains (C, K, P), within four Monte Carlo errors.

    The error of a mean follows from the chain's own autocorrelation; those of second moments from that of the products,
    which mix differently. Both must be worth at least `min_ess` independent draws. `fourth` is the standardised fourth
    moment of the target, a normal's unless told: squares scatter by √(fourth − 1), products of uncorrelated coordinates by
    √(fourth / 3).
    """
    draws, sd = draws.double(), covariance.diagonal().sqrt()
    z = ((draws - mean) / sd).numpy()
    correlation = (covariance / (sd[:, None] * sd)).numpy()
    for i in range(z.shape[-1]):
        _assert_mean(z[..., i], 0.0, 1.0, min_ess, f"mean {i}")
        # log sd: d(sd)/sd = d(variance)/(2 variance)
        _assert_mean(z[..., i] ** 2, 1.0, math.sqrt(fourth - 1.0), min_ess, f"variance {i}")
        for j in range(i):
            r = correlation[i, j]
            # The residual of one coordinate given another sees a wrong correlation that products of large terms hide.
            residual = (z[..., i] - r * z[..., j]) / math.sqrt(1 - r * r)
            _assert_mean(residual * z[..., j], 0.0, math.sqrt(fourth / 3.0), min_ess, f"correlation {i}, {j}")


def _assert_mean(values: np.ndarray, truth: float, sd: float, min_ess: float, what: str) -> None:
    worth = effective_size(values)
    assert worth >= min_ess, f"{what}: only {worth:.0f} effective draws"
    off = abs(values.mean() - truth) / (sd / math.sqrt(worth))
    assert off < FOUR, f"{what} is {off:.1f} Monte Carlo errors off ({values.mean():.4f} for {truth:.4f})"
