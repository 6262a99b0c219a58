"""Noisy K-FAC against exact Bayes and its own fixed point by quadrature."""

import numpy as np
import pytest
import torch
from scipy.optimize import root
from tests.inference.natural_gradient.kronecker_cases import (
    dense_covariance,
    exact_bayes,
    fit,
    of_each_output,
    several_outputs,
)
from torch import nn

import plausible as pl


@pytest.mark.parametrize("damping", [0.0, 0.05])
def test_on_a_conjugate_model_it_settles_at_exact_bayes_whatever_the_damping(damping):
    model, x, y = several_outputs()
    method = pl.NoisyKFAC(learning_rate=0.2, num_samples=4, damping=damping)
    posterior = fit(model, (x, y), method, steps=150)
    mean, covariance = exact_bayes(x, y, 1 / 16)
    found, spread = of_each_output(posterior)
    # At a constant rate η the mean would wander by √(η / 2K) = 0.16 deviations; the rate goes to zero.
    assert ((found - mean) / covariance.diagonal().sqrt()).abs().max() < 0.16
    torch.testing.assert_close(spread, torch.block_diag(covariance, covariance), rtol=1e-8, atol=1e-10)


def test_of_logistic_regression_it_finds_the_fixed_point_that_quadrature_finds():
    """One weight and inputs of one size, where K-FAC's factors are no approximation: the best Gaussian there is."""
    x = torch.tensor([1.5] * 5 + [-1.5] * 4).double().unsqueeze(1)
    y = (x > 0).double()  # they can be separated, so that the posterior is skewed
    model = pl.BayesianModel(
        nn.Linear(1, 1, bias=False).double(), pl.likelihoods.Bernoulli(), pl.priors.Normal(scale=2.0)
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    xs, ys = x.numpy().ravel(), y.numpy().ravel()

    def equations(at):
        mean, log_precision = at
        w = mean + np.exp(-0.5 * log_precision) * nodes
        p = 1 / (1 + np.exp(-w[:, None] * xs))
        slope = weights @ ((ys - p) * xs).sum(1) - mean / 4
        return slope, weights @ ((p * (1 - p)) * xs**2).sum(1) + 0.25 - np.exp(log_precision)

    solved = root(equations, np.array([0.5, 1.0]), tol=1e-12)
    assert solved.success
    method = pl.NoisyKFAC(learning_rate=0.2, num_samples=4, curvature_decay=0.98, update_every=4, damping=0.0)
    posterior = fit(model, (x, y), method, steps=300)
    mean, deviation = solved.x[0], np.exp(-0.5 * solved.x[1])
    assert abs(float(posterior.mean["weight"]) - mean) < 0.16 * deviation  # √(η / 2K), as above
    # The last fifty looks are at 200 draws, between which the curvature varies about twofold: 7 % for its mean, and half of
    # that for the deviation.
    assert abs(float(posterior.blocks[0].scale * posterior.blocks[0].right.abs()) / deviation - 1) < 0.07
    laplace = fit(model, (x, y), pl.Laplace(structure="full"), steps=500)
    assert abs(float(laplace.mean["weight"]) - mean) > 0.3 * deviation  # and is another one than the highest point


def test_the_first_look_at_the_curvature_is_at_the_mean():
    model, x, y = several_outputs()
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model = pl.BayesianModel(network, model.likelihood)
    settings = {"learning_rate": 1e-14, "damping": 0.0}
    noisy, plain = (fit(model, (x, y), m(**settings), steps=1) for m in (pl.NoisyKFAC, pl.KFAC))
    torch.testing.assert_close(dense_covariance(noisy), dense_covariance(plain))


def test_the_noise_is_learnt_with_the_weights():
    _, x, y = several_outputs()
    model = pl.BayesianModel(nn.Linear(3, 2).double(), pl.likelihoods.Normal(scale="learn"))
    posterior = fit(model, (x, y), pl.NoisyKFAC(), steps=200)
    noise = float(model.constrain(posterior.mean)["likelihood.scale"])
    assert 0.4 < noise < 0.65  # drawn with 0.5, from 60 targets: 9 % is one standard error
    torch.testing.assert_close(posterior.scale["likelihood.scale"], torch.tensor(120.0).double().rsqrt())


def test_the_number_of_draws_is_a_positive_integer():
    with pytest.raises(ValueError, match="num_samples must be a positive integer, got 0"):
        pl.NoisyKFAC(num_samples=0)
