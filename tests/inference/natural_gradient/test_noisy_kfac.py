"""Noisy K-FAC against exact Bayes, its own fixed point by quadrature, and the law of its draws."""

import numpy as np
import pytest
import torch
from scipy.optimize import root
from tests.inference.natural_gradient.kronecker_cases import (
    LIKE,
    PRIOR,
    block_factors,
    dense_covariance,
    dense_inverse,
    exact_bayes,
    fit,
    several_outputs,
)
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient import kronecker_preconditioner as metric

DRAWS = 200_000


@pytest.fixture
def factors():
    return block_factors()


def off_by(found, covariance, draws):
    """The largest distance of a sample covariance from a stated one, in standard errors of its entries."""
    sizes = covariance.diagonal()
    error = ((sizes[:, None] * sizes + covariance.square()) / draws).sqrt()
    return float(((found - covariance).abs() / error).max())


@pytest.mark.parametrize("damping", [0.0, 0.05])
def test_on_a_conjugate_model_it_settles_at_exact_bayes_whatever_the_damping(damping):
    model, x, y = several_outputs()
    method = pl.NoisyKFAC(learning_rate=0.2, num_samples=4, damping=damping)
    posterior = fit(model, (x, y), method, steps=150)
    mean, covariance = exact_bayes(x, y, 1 / 16)
    found = torch.cat([posterior.mean["weight"], posterior.mean["bias"][:, None]], 1)
    # At a constant rate η the mean would wander by √(η / 2K) = 0.16 deviations; the rate goes to zero.
    assert ((found - mean) / covariance.diagonal().sqrt()).abs().max() < 0.16
    order = torch.tensor([0, 1, 2, 6, 3, 4, 5, 7])
    expected = torch.block_diag(covariance, covariance)
    torch.testing.assert_close(dense_covariance(posterior)[order][:, order], expected, rtol=1e-8, atol=1e-10)


def test_draws_of_a_wide_layer_have_the_covariance_of_the_matrix_normal_that_is_stated(factors, monkeypatch):
    """MN(0, rows, columns): covariance rows ⊗ columns, of 200,000 draws, condition above 100."""
    monkeypatch.setattr(metric, "EXACT_WIDTH", 2)
    made = metric.roots(factors, PRIOR, LIKE)
    drawn = draws(made)
    for group in (0, 1):
        g, a = (factors["blocks"]["w + b"][k][group] for k in ("rows", "columns"))
        stretch = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.5]).double().rsqrt())
        scaled = stretch @ a @ stretch
        pi = ((scaled.trace() / 4) / (g.trace() / 3)).sqrt()
        rows = torch.linalg.inv(g + torch.eye(3).double() / pi)
        columns = stretch @ torch.linalg.inv(scaled + pi * torch.eye(4).double()) @ stretch
        stated = torch.kron(rows.contiguous(), columns.contiguous())
        assert torch.linalg.cond(stated) > 100
        assert off_by(torch.cov(drawn[:, group].flatten(1).T), stated, DRAWS) < 5


def test_draws_of_a_layer_have_the_inverse_of_curvature_and_prior_as_covariance(factors):
    made = metric.roots(factors, PRIOR, LIKE)
    drawn = draws(made).flatten(1)
    stated = dense_inverse(made, LIKE)
    assert torch.linalg.cond(stated) > 100
    blocks = torch.block_diag(torch.ones(12, 12), torch.ones(12, 12)).bool()
    found = torch.cov(drawn.T)
    errors = (found - stated).abs() / (stated.diagonal()[:, None] * stated.diagonal() / DRAWS).sqrt()
    assert off_by(found, stated, DRAWS) < 5 and errors[~blocks].max() < 5


def draws(made):
    """(DRAWS, group, row, column)."""
    rng = torch.Generator().manual_seed(3)
    noise = {k: torch.randn(DRAWS, *v.shape, generator=rng, dtype=torch.float64) for k, v in LIKE.items()}
    away = torch.vmap(lambda z: metric.deviations(made, z))(noise)
    return torch.cat([away["w"].reshape(DRAWS, 2, 3, 3), away["b"].reshape(DRAWS, 2, 3, 1)], -1)


def test_draws_do_not_depend_on_the_signs_of_eigenvectors(factors, monkeypatch):
    noise = {k: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).double() for k, v in LIKE.items()}
    before = metric.deviations(metric.roots(factors, PRIOR, LIKE), noise)
    plain = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: (plain(m)[0], -plain(m)[1]))
    after = metric.deviations(metric.roots(factors, PRIOR, LIKE), noise)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


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
