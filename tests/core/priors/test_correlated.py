"""A prior of convolution filters whose neighbouring entries resemble each other."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import plausible as pl

Correlated = pl.priors.Correlated


def covariance(height, width, scale, lengthscale):
    positions = np.array([(i, j) for i in range(height) for j in range(width)], dtype=float)
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return scale**2 * np.exp(-distance / lengthscale)


@pytest.mark.parametrize(("height", "width", "lengthscale"), [(3, 3, 1.0), (5, 2, 3.0), (1, 1, 1.0)])
def test_the_density_of_filters_is_scipys(height, width, lengthscale):
    prior = Correlated(scale=0.7, lengthscale=lengthscale)
    w = torch.randn(4, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    law = stats.multivariate_normal(np.zeros(height * width), covariance(height, width, 0.7, lengthscale))
    expected = law.logpdf(w.flatten(2).flatten(0, 1).numpy().reshape(12, -1)).sum()
    found = prior.log_prob(w)
    assert found.shape == w.shape
    assert float(found.sum()) == pytest.approx(expected, abs=1e-10)


def test_its_score_is_the_slope_of_its_density():
    prior, w = Correlated(scale=0.7, lengthscale=2.0), torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(prior.log_prob(w).sum(), w)
    torch.testing.assert_close(prior.score(w.detach()), slope, rtol=1e-10, atol=1e-10)


def test_weights_without_positions_are_plain_normal():
    w = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        Correlated(scale=0.3).log_prob(w), torch.distributions.Normal(0.0, 0.3).log_prob(w).double()
    )
    torch.testing.assert_close(Correlated(scale=0.3).score(w), -w / 0.09)


def test_draws_have_the_stated_covariance():
    draws = Correlated(scale=0.7, lengthscale=1.5).sample(
        torch.empty(300, 300, 3, 3, dtype=torch.float64), torch.Generator().manual_seed(3)
    )
    expected = covariance(3, 3, 0.7, 1.5)
    # Each entry's Monte Carlo error is at most √2 · 0.49 / √90,000 = 0.0023.
    assert np.abs(np.cov(draws.flatten(0, 1).flatten(1).T.numpy()) - expected).max() < 4 * 0.0023


def test_one_dimensional_filters_have_positions_too():
    w = torch.randn(2, 2, 4, dtype=torch.float64)
    law = stats.multivariate_normal(np.zeros(4), covariance(1, 4, 1.0, 2.0))
    assert float(Correlated(lengthscale=2.0).log_prob(w).sum()) == pytest.approx(
        law.logpdf(w.reshape(4, 4).numpy()).sum(), abs=1e-10
    )


def test_fan_in_and_hierarchies_may_be_around_it():
    w = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    law = stats.multivariate_normal(np.zeros(9), covariance(3, 3, 1.0, 1.0) / 27)
    assert float(pl.priors.fan_in(Correlated()).log_prob(w).sum()) == pytest.approx(
        law.logpdf(w.reshape(6, 9).numpy()).sum(), abs=1e-9
    )
    network = nn.Conv2d(3, 2, 3).double()
    prior = pl.priors.Hierarchical(family=Correlated, hyperprior=pl.hyperpriors.LogNormal(), per="unit")
    model = pl.BayesianModel(network, pl.likelihoods.Normal(), prior=prior)
    params = model.init(1)
    params["prior.scale"] = torch.tensor([[[[0.3]]], [[[-0.5]]]], dtype=torch.float64)
    natural, expected = model.constrain(params), 0.0
    for i, u in enumerate((0.3, -0.5)):
        s = np.exp(u)
        own = stats.multivariate_normal(np.zeros(9), s**2 * covariance(3, 3, 1.0, 1.0))
        expected += own.logpdf(natural["weight"][i].reshape(3, 9).numpy()).sum()
        expected += stats.norm(0, s).logpdf(natural["bias"][i]) + stats.lognorm(1.0).logpdf(s)
    assert float(model.log_prior(params)) == pytest.approx(expected, abs=1e-9)


def test_laplace_refuses_it_and_names_what_works():
    model = pl.BayesianModel(nn.Conv2d(1, 1, 3), pl.likelihoods.Normal(), prior=Correlated())
    with pytest.raises(pl.NotSupported, match="HMC"):
        pl.fit(model, (torch.randn(4, 1, 3, 3), torch.randn(4, 1, 1, 1)), pl.Laplace(), steps=1, progress=False)


def test_filters_are_fitted_under_it():
    torch.manual_seed(0)
    model = pl.BayesianModel(nn.Conv2d(1, 2, 3), pl.likelihoods.Normal(scale=0.1), prior=Correlated(lengthscale=100.0))
    x = torch.randn(8, 1, 3, 3)
    posterior = pl.fit(model, (x, torch.zeros(8, 2, 1, 1)), pl.MAP(learning_rate=0.02), steps=300, progress=False)
    assert float(posterior.mean["weight"].abs().max()) < 0.05


@pytest.mark.parametrize("name", ["scale", "lengthscale"])
def test_a_scale_that_is_not_positive_is_named(name):
    with pytest.raises(ValueError, match=name):
        Correlated(**{name: 0.0})
