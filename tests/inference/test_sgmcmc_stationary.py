"""SGLD and SGHMC against the exact stationary law of their recursions on normal targets, and that law against the target."""

import math

import numpy as np
import pytest
import torch
from tests.inference.stationary import chains_of, normal_target, sghmc_covariance, sgld_covariance
from tests.oracles import anisotropic_covariance, assert_chains, effective_size, linear_regression

import plausible as pl
from plausible.inference.mcmc import sghmc, sgld
from plausible.weights.rng import Keys, run_key

QUIET = {"progress": False, "compile": False, "device": "cpu"}
MEAN = torch.tensor([2.0, -5.0], dtype=torch.float64)
CORRELATED = torch.tensor([[1.0, 1.5], [1.5, 4.0]], dtype=torch.float64)  # correlation 0.75, deviations 1 and 2
TEN = 4 * anisotropic_covariance(10, 100.0, seed=3)
SLOW = ["sgld", "sghmc", "sghmc-saga"]
TEMPERATURES = [0.5, 1.0, 2.0]


def sampled(target, method, steps, seed):
    return chains_of(pl.fit(target, None, method, steps=steps, seed=seed, init="reset", **QUIET))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sgld_has_the_stationary_law_of_its_recursion(temperature):
    step_size = 0.3 * temperature  # a relative bias of about 20 % in the narrow direction, which must be met
    precision = torch.linalg.inv(CORRELATED) / temperature
    method = pl.SGLD(step_size=step_size, burn_in=110)
    draws = sampled(normal_target(MEAN, CORRELATED, temperature), method, 360, seed=1)
    assert_chains(draws, MEAN, sgld_covariance(precision, step_size))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sghmc_has_the_stationary_law_of_its_recursion(temperature):
    step_size, friction = 0.4 * math.sqrt(temperature), 1.0 / math.sqrt(temperature)
    precision = torch.linalg.inv(CORRELATED) / temperature
    method = pl.SGHMC(step_size=step_size, friction=friction, burn_in=110)
    draws = sampled(normal_target(MEAN, CORRELATED, temperature), method, 360, seed=2)
    assert_chains(draws, MEAN, sghmc_covariance(precision, step_size, friction)[:2, :2])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", ["sgld", "sghmc"])
def test_ten_dimensions_of_condition_a_hundred_have_the_law_of_the_recursion(name, temperature):
    mean = torch.linspace(-2, 3, 10, dtype=torch.float64)
    precision = torch.linalg.inv(TEN) / temperature
    if name == "sgld":
        h = 0.02 * temperature
        method, expected = pl.SGLD(step_size=h, burn_in=100), sgld_covariance(precision, h)
    else:
        h, friction = 0.15 * math.sqrt(temperature), 1.5 / math.sqrt(temperature)
        method = pl.SGHMC(step_size=h, friction=friction, burn_in=300)
        expected = sghmc_covariance(precision, h, friction)[:10, :10]
    chains = 3000 if name == "sgld" else 2000
    target = normal_target(mean, TEN, temperature, chains=chains)
    # SGLD's widest direction forgets its start in 5,000 steps: start in the law, which a right step keeps.
    if name == "sgld":
        z = torch.randn(chains, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        start = mean + z @ torch.linalg.cholesky(expected).T
        target = pl.LogDensity(target.log_prob, {"a": start[:, :5], "b": start[:, 5:]})
    draws = sampled(target, method, method.burn_in + 900, seed=3)
    assert_chains(draws[:, ::3], mean, expected)


def test_noise_that_is_wrong_by_the_root_of_two_is_seen(monkeypatch):
    """What the tests above would say of the commonest mistake."""
    for module, method, expected in (
        (sgld, pl.SGLD(step_size=0.3, burn_in=100), sgld_covariance(torch.linalg.inv(CORRELATED), 0.3)),
        (sghmc, pl.SGHMC(step_size=0.4, friction=1.0, burn_in=100),
         sghmc_covariance(torch.linalg.inv(CORRELATED), 0.4, 1.0)[:2, :2]),
    ):  # fmt: skip
        original = module.deviation
        monkeypatch.setattr(module, "deviation", lambda variance, original=original: original(2 * variance))
        draws = sampled(normal_target(MEAN, CORRELATED), method, 220, seed=1)
        with pytest.raises(AssertionError, match="variance 0 is"):
            assert_chains(draws, MEAN, expected, min_ess=2000)


def test_the_bias_of_finite_steps_falls_as_theory_says():
    """SGLD's covariance is too large by ε / 2 in every direction; SGHMC's is off by the square of h."""
    precision = torch.linalg.inv(CORRELATED)
    for step_size in (0.02, 0.01):
        bias = sgld_covariance(precision, step_size) - CORRELATED
        torch.testing.assert_close(bias, step_size / 2 * torch.eye(2, dtype=torch.float64), rtol=0.05, atol=1e-4)
    coarse, fine = (sghmc_covariance(precision, h, 1.0)[:2, :2] - CORRELATED for h in (0.02, 0.01))
    assert 3.8 < float(coarse.norm() / fine.norm()) < 4.2


class Noisy(pl.LogDensity):
    """A log density whose gradient has noise N(0, V I) of its own."""

    needs_key = True
    variance = 1.5

    def objective(self, params, batch, key):
        xi = Keys(key, key[0] * 0).normal_like(dict(params))
        return self.log_joint(params) + self.variance**0.5 * sum((params[k] * xi[k]).sum() for k in xi)


@pytest.mark.parametrize("name", ["sgld", "sghmc"])
def test_known_gradient_noise_is_taken_off_what_is_put_in(name):
    """A gradient with noise of its own, and so much less put in: the law is that of exact gradients."""
    exact = normal_target(MEAN, CORRELATED)
    precision = torch.linalg.inv(CORRELATED)
    if name == "sgld":
        method = pl.SGLD(step_size=0.3, burn_in=100, gradient_noise=1.5)
        expected = sgld_covariance(precision, 0.3)
    else:
        method = pl.SGHMC(step_size=0.4, friction=1.0, burn_in=100, gradient_noise=1.5)
        expected = sghmc_covariance(precision, 0.4, 1.0)[:2, :2]
    assert_chains(sampled(Noisy(exact.log_prob, exact.start), method, 320, seed=4), MEAN, expected)


def test_a_preconditioned_step_is_that_of_the_formula():
    """Against the recursion in numpy, with the library's random numbers."""
    target = normal_target(MEAN, CORRELATED, chains=3)
    posterior = pl.fit(target, None, pl.SGLD(step_size=0.05, burn_in=0, preconditioned=True), steps=30, seed=5, **QUIET)
    w, squares = MEAN.numpy() * np.ones((3, 2)), 0.0
    precision = np.linalg.inv(CORRELATED.numpy())
    for t in range(30):
        gradient = -(w - MEAN.numpy()) @ precision
        squares = 0.99 * squares + 0.01 * gradient**2
        size = 0.05 / (1e-5 + np.sqrt(squares / (1 - 0.99 ** (t + 1))))
        noise = Keys(run_key(5), torch.tensor(t)).normal_like({k: v[0] for k, v in posterior.draws.items()})
        w = w + size * gradient + np.sqrt(2 * size) * np.concatenate([noise["a"], noise["b"]], 1)
        np.testing.assert_allclose(chains_of(posterior)[:, t].numpy(), w, rtol=1e-9)


@pytest.mark.slow
def test_a_preconditioner_that_the_point_does_not_move_leaves_the_target_alone():
    """Where the gradient is mostly noise, as in large networks, the dropped term Γ is nothing."""
    exact = normal_target(MEAN, CORRELATED, chains=2000)
    target = Noisy(exact.log_prob, exact.start)
    target.variance = 100.0
    # Steps of 0.15 / 10, whose gradients bring a variance of 0.0225: less than the 0.03 that is wanted.
    method = pl.SGLD(step_size=0.15, burn_in=1000, preconditioned=True, gradient_noise=100.0)
    flat = sampled(target, method, 1500, seed=5)[:, ::50].flatten(0, 1)
    assert float((flat.mean(0) - MEAN).abs().max()) < 0.05
    torch.testing.assert_close(torch.from_numpy(np.cov(flat.T)), CORRELATED, rtol=0.06, atol=0.06)


def test_thermometers_read_one_where_the_target_is_met():
    """−w·∇/d and p·p/d: their exact stationary means, from the covariance of the recursion."""
    target = normal_target(torch.zeros(2, dtype=torch.float64), CORRELATED)
    precision, h = torch.linalg.inv(CORRELATED), 0.1
    posterior = pl.fit(target, None, pl.SGHMC(step_size=h, friction=1.0, burn_in=300), steps=900, seed=6, **QUIET)
    covariance = sghmc_covariance(precision, h, 1.0)
    expected = {
        "configurational_temperature": float((precision @ covariance[:2, :2]).trace()) / 2,
        "kinetic_temperature": float(covariance[2:, 2:].trace()) / 2,
    }
    for name, truth in expected.items():
        values = posterior.statistics[name].numpy()[None]
        error = values.std() / math.sqrt(effective_size(values))
        assert error < 0.01
        assert abs(values.mean() - truth) < 4 * error
        assert abs(truth - 1) < 0.06  # the kinetic one is off by D h / 2, the other by h²


@pytest.mark.parametrize("name", ["sgld", "sghmc", "psgld"])
def test_a_posterior_of_temperature_almost_zero_is_the_point_that_an_optimiser_finds(name):
    truth = linear_regression(n=15, inputs=2, noise=0.5, seed=9)
    model = pl.BayesianModel(torch.nn.Linear(2, 1).double(), pl.likelihoods.Normal(scale=0.5), temperature=1e-8)
    scale = 1e-8 / 15  # T / N
    methods = {
        "sgld": pl.SGLD(step_size=0.12 * scale),
        "sghmc": pl.SGHMC(step_size=0.1 * scale**0.5),
        "psgld": pl.SGLD(step_size=0.05 * scale, preconditioned=True, schedule="cosine"),
    }
    posterior = pl.fit(model, truth.data(), methods[name], steps=1200, seed=1, batch_size=15, **QUIET)
    found = torch.cat([posterior.draws["weight"][-1].flatten(), posterior.draws["bias"][-1]])
    assert float((found - truth.mean).abs().max()) < 2e-3


@pytest.mark.parametrize("name", ["sghmc-svrg", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_conjugate_regression_in_minibatches_has_its_closed_form(name):
    """Small steps leave little of the gradient's noise: moments within 8 % of the deviations."""
    truth = linear_regression(n=40, inputs=2, noise=1.0, seed=9)
    methods = {
        "sgld": pl.SGLD(step_size=6e-4, burn_in=400),
        "sghmc": pl.SGHMC(step_size=0.02, friction=6.0, burn_in=400),
        "sghmc-svrg": pl.SGHMC(step_size=0.03, friction=6.0, burn_in=300, variance_reduction="svrg"),
        "sghmc-saga": pl.SGHMC(step_size=0.03, friction=6.0, burn_in=300, variance_reduction="saga"),
    }
    # Every output is a regression of its own on the same targets: as many chains for the price of one.
    chains = 300
    network = torch.nn.Linear(2, chains).double()
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    x, y = truth.data()
    posterior = pl.fit(model, (x, y.expand(-1, chains)), methods[name], steps=1200, batch_size=10, seed=3, **QUIET)
    draws = torch.cat([posterior.draws["weight"], posterior.draws["bias"].unsqueeze(-1)], -1)
    flat = draws[::10].flatten(0, 1)
    sd = truth.covariance.diagonal().sqrt()
    assert float(((flat.mean(0) - truth.mean) / sd).abs().max()) < 0.08
    correlation, expected = np.corrcoef(flat.T), truth.covariance / (sd[:, None] * sd)
    assert float((flat.std(0) / sd - 1).abs().max()) < 0.08
    assert float((torch.from_numpy(correlation) - expected).abs().max()) < 0.05
