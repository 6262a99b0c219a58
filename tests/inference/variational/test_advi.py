"""ADVI against closed forms: conjugate regression, its evidence, and the mean field's known optimum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from tests.oracles import anisotropic_covariance, linear_regression, vector_of
from torch.distributions import constraints

import plausible as pl

QUIET = {"progress": False, "device": "cpu"}
TRUTH = linear_regression(n=30, inputs=4, seed=3)
SEEDS = 10


def condition(truth):
    values = torch.linalg.eigvalsh(truth.covariance)
    return float(values[-1] / values[0])


def modes_of(truth, method, steps, modes, **settings):
    """Independent runs from one start, with all data at every step."""
    settings = {"num_modes": modes, "init": "network", **QUIET, **settings}
    return pl.fit(truth.model(), truth.data(), method, steps=steps, batch_size=len(truth.y), **settings).components


def mean_off(posterior, truth):
    """Largest distance of a mean from the truth, in posterior deviations."""
    deviations = truth.covariance.diagonal().sqrt()
    return float(((vector_of(posterior.mean) - truth.mean) / deviations).abs().max())


def covariance_off(posterior, truth):
    """Largest error of the covariance in the units of the truth, in which that is the identity."""
    root = torch.linalg.inv(torch.linalg.cholesky(truth.covariance))
    return float((root @ posterior.covariance @ root.T - torch.eye(len(root))).abs().max())


def assert_bound_is_the_evidence(posterior, truth):
    evidence = posterior.evidence()
    assert evidence.kind == "lower bound"
    exact = pl.evidence.exact(truth.model(), truth.data()).log_marginal_likelihood
    assert abs(float(exact) - truth.log_evidence) < 1e-8
    off = abs(float(evidence.log_marginal_likelihood) - float(exact))
    assert off < 3 * evidence.standard_error + 1e-9  # where all draws agree to the last digits, those are the error


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["reparameterised", "sticking-the-landing"])
def test_the_full_family_is_the_conjugate_posterior_for_ten_seeds(estimator):
    assert condition(TRUTH) <= 30
    method = pl.ADVI(family="full", num_samples=8, estimator=estimator)
    for posterior in modes_of(TRUTH, method, 5000, SEEDS, compile=True):
        assert mean_off(posterior, TRUTH) < (0.05 if estimator == "reparameterised" else 1e-3)
        assert covariance_off(posterior, TRUTH) < (0.05 if estimator == "reparameterised" else 1e-3)
        assert_bound_is_the_evidence(posterior, TRUTH)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adaptive"])
def test_the_mean_field_is_at_its_known_optimum_for_ten_seeds(optimizer):
    """Variances 1 / diag(Λ), and a bound that is below the evidence by half the log determinant of Λ's correlations."""
    precision = torch.linalg.inv(TRUTH.covariance)
    gap = 0.5 * float(precision.diagonal().log().sum() - precision.logdet())
    for posterior in modes_of(TRUTH, pl.ADVI(num_samples=8, optimizer=optimizer), 5000, SEEDS, compile=True):
        assert mean_off(posterior, TRUTH) < 0.05
        torch.testing.assert_close(vector_of(posterior.scale) ** 2, 1 / precision.diagonal(), rtol=0.05, atol=0)
        evidence = posterior.evidence()
        off = float(evidence.log_marginal_likelihood) - (TRUTH.log_evidence - gap)
        assert abs(off) < 4 * evidence.standard_error + 0.005  # ten seeds share their draws; the rest is the run's


def test_sticking_the_landing_ends_on_the_conjugate_posterior_exactly():
    method = pl.ADVI(family="full", estimator="sticking-the-landing", learning_rate=0.1)
    (posterior,) = modes_of(TRUTH, method, 700, 1)
    assert mean_off(posterior, TRUTH) < 1e-3
    assert covariance_off(posterior, TRUTH) < 1e-3
    assert_bound_is_the_evidence(posterior, TRUTH)
    assert posterior.diagnostics().ok


def test_few_steps_are_told_from_enough():
    """A run that was stopped early is near neither the mean nor the covariance, and says so."""
    method = pl.ADVI(family="full", num_samples=2, estimator="sticking-the-landing", learning_rate=0.01)
    (posterior,) = modes_of(TRUTH, method, 40, 1)
    diagnostics = posterior.diagnostics()
    assert covariance_off(posterior, TRUTH) > 0.05
    assert not diagnostics.ok and any("has not converged" in m for m in diagnostics.messages)
    distance = diagnostics.table["distance"]
    assert distance["mean"] > 0.02 and distance["scale"] > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("steps", [200, 1500])
@pytest.mark.parametrize("family", ["diagonal", "full"])
def test_an_ill_conditioned_posterior_is_found_or_the_diagnostics_say_that_it_is_not(family, steps):
    """A narrow valley: two inputs that are nearly one. In 200 steps nothing gets through it."""
    base = linear_regression(n=300, inputs=4, noise=0.2, seed=3)
    x = base.x.clone()
    x[:, 3] = x[:, 2] + 0.05 * x[:, 3]
    truth = replace(base, x=x)
    assert condition(truth) > 3000
    precision = torch.linalg.inv(truth.covariance)
    for posterior in modes_of(truth, pl.ADVI(family=family, num_samples=2), steps, 2):
        if family == "full":
            good = mean_off(posterior, truth) < 0.05 and covariance_off(posterior, truth) < 0.05
        else:
            variances = vector_of(posterior.scale) ** 2 * precision.diagonal()
            good = mean_off(posterior, truth) < 0.05 and bool(((variances - 1).abs() < 0.05).all())
        assert good or not posterior.diagnostics().ok
        assert steps == 1500 or not good


def normal_density(covariance, mean):
    precision = torch.linalg.inv(covariance)
    constant = -0.5 * (len(mean) * math.log(2 * math.pi) + float(covariance.logdet())) + 3.0

    def log_prob(p):
        away = torch.cat([p["a"], p["b"].flatten()]) - mean
        return constant - 0.5 * away @ precision @ away

    zeros = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2, 2, dtype=torch.float64)}
    return pl.LogDensity(log_prob, zeros)


def test_a_normal_density_is_found_with_its_integral_across_tensors():
    """A density that integrates to e³: constants count, and so does the covariance between two tensors."""
    covariance, mean = anisotropic_covariance(6, 20.0, seed=1), torch.linspace(-1, 1, 6, dtype=torch.float64)
    method = pl.ADVI(family="full", estimator="sticking-the-landing", learning_rate=0.1)
    posterior = pl.fit(normal_density(covariance, mean), None, method, steps=1000, **QUIET)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=2e-3, atol=2e-3 * float(covariance.max()))
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(3.0, abs=1e-4)


def test_a_low_rank_covariance_is_found():
    """diag + one factor, which the family has, and the mean field has not."""
    generator = torch.Generator().manual_seed(0)
    factor = 0.5 * torch.randn(6, 1, generator=generator, dtype=torch.float64)
    covariance = 0.1 * torch.eye(6, dtype=torch.float64) + factor @ factor.T
    density = normal_density(covariance, torch.zeros(6, dtype=torch.float64))
    method = pl.ADVI(family="low-rank", rank=1, estimator="sticking-the-landing", learning_rate=0.1)
    posterior = pl.fit(density, None, method, steps=1000, **QUIET)
    flat = vector_of(posterior.factors, 1)
    found = torch.diag(vector_of(posterior.variance)) + flat.T @ flat
    torch.testing.assert_close(found, covariance, rtol=0, atol=0.01 * float(covariance.max()))
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(3.0, abs=1e-3)


def test_a_factor_that_is_long_beside_the_diagonal_gets_its_length():
    """Eighteen deviations of the diagonal; without lengths of their own, factors had a third of its variance in this run."""
    factor = torch.tensor([[2.0], [-1.0], [0.5], [1.5], [-2.0], [1.0]], dtype=torch.float64)
    covariance = 0.04 * torch.eye(6, dtype=torch.float64) + factor @ factor.T
    density = normal_density(covariance, torch.zeros(6, dtype=torch.float64))
    method = pl.ADVI(family="low-rank", rank=2, estimator="sticking-the-landing", learning_rate=0.1)
    posterior = pl.fit(density, None, method, steps=1000, **QUIET)
    flat = vector_of(posterior.factors, 1)
    found = torch.diag(vector_of(posterior.variance)) + flat.T @ flat
    root = torch.linalg.inv(torch.linalg.cholesky(covariance))
    assert float((root @ found @ root.T - torch.eye(6)).abs().max()) < 0.1


def test_a_positive_unknown_has_its_jacobian():
    """log of a gamma variable under a normal: the optimum solves E[ζ-slope] = 0 and has its variance 1 / shape."""
    shape, rate = 8.0, 2.0

    def log_prob(p):
        return (shape - 1) * p["x"].log() - rate * p["x"] + shape * math.log(rate) - math.lgamma(shape)

    density = pl.LogDensity(log_prob, {"x": torch.tensor(1.0).double()}, support={"x": constraints.positive})
    method = pl.ADVI(num_samples=8, estimator="sticking-the-landing", learning_rate=0.05)
    posterior = pl.fit(density, None, method, steps=800, **QUIET)
    # Of N(m, s²): ELBO = shape · m − rate · exp(m + s²/2) + log s + ..., highest at s² = 1 / shape.
    assert float(posterior.scale["x"]) ** 2 == pytest.approx(1 / shape, rel=0.03)
    assert float(posterior.mean["x"]) == pytest.approx(math.log(shape / rate) - 0.5 / shape, abs=0.01)
    exact = stats.loggamma(shape).entropy()  # and the bound is below zero by a KL that is not large
    assert -0.02 < float(posterior.evidence().log_marginal_likelihood) < 0.001 and exact > 0
