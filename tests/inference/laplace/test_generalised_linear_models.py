"""Generalised linear models with flat priors: maximum likelihood, whose covariances statsmodels has published for decades."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn

import plausible as pl

QUICK = {"init": "network", "epochs": 0, "progress": False}


def design(n=200, inputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, inputs)) @ (np.eye(inputs) + 0.3 * rng.normal(size=(inputs, inputs)))
    return x, x @ rng.normal(size=inputs) * 0.6 + 0.4, rng


def fit(likelihood, x, y, network=None, **settings):
    network = network or nn.Linear(x.shape[1], 1).double()
    model = pl.BayesianModel(network, likelihood, pl.priors.Flat())
    return pl.fit(
        model, (torch.as_tensor(x), torch.as_tensor(y)), pl.Laplace(structure="full"), **{**QUICK, **settings}
    )


def assert_same(posterior, params, covariance, rtol=1e-6):
    """`params` in the order weight, bias."""
    mean = torch.cat([posterior.mean["weight"].flatten(), posterior.mean["bias"]]).numpy()
    np.testing.assert_allclose(mean, params, rtol=rtol)
    np.testing.assert_allclose(
        posterior.covariance.numpy(), covariance, rtol=rtol, atol=rtol * np.abs(covariance).max()
    )


def with_intercept_last(x):
    return np.concatenate([x, np.ones((len(x), 1))], 1)


def test_logistic_regression_has_the_covariance_of_statsmodels():
    x, linear, rng = design()
    y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-linear))).astype(float)
    truth = sm.Logit(y, with_intercept_last(x)).fit(disp=0, tol=1e-12)
    assert_same(fit(pl.likelihoods.Bernoulli(), x, y[:, None]), truth.params, truth.cov_params())


def test_poisson_regression_has_the_covariance_of_statsmodels():
    x, linear, rng = design()
    y = rng.poisson(np.exp(linear)).astype(float)
    truth = sm.Poisson(y, with_intercept_last(x)).fit(disp=0, method="newton", tol=1e-12)
    assert_same(fit(pl.likelihoods.Poisson(), x, y[:, None]), truth.params, truth.cov_params())


def test_linear_regression_with_its_residual_scale_has_the_covariance_of_least_squares():
    x, linear, rng = design()
    y = linear + 0.7 * rng.normal(size=len(x))
    truth = sm.OLS(y, with_intercept_last(x)).fit()
    posterior = fit(pl.likelihoods.Normal(scale=float(truth.scale**0.5)), x, y[:, None])
    assert_same(posterior, truth.params, truth.cov_params())


def test_weighted_least_squares_by_weights_of_examples():
    x, linear, rng = design()
    weights = rng.uniform(0.2, 2.0, size=len(x))
    y = linear + 0.7 * rng.normal(size=len(x)) / np.sqrt(weights)
    truth = sm.WLS(y, with_intercept_last(x), weights=weights).fit()
    model = pl.BayesianModel(
        nn.Linear(3, 1).double(), pl.likelihoods.Normal(scale=float(truth.scale**0.5)), pl.priors.Flat()
    )
    data = tuple(map(torch.as_tensor, (x, y[:, None], weights)))
    assert_same(pl.fit(model, data, pl.Laplace(structure="full"), **QUICK), truth.params, truth.cov_params())


def test_an_unknown_noise_scale_is_the_maximum_likelihood_one_with_its_textbook_deviation():
    """log σ̂ = ½ log(RSS / n) with variance 1 / (2 n), independent of the weights."""
    x, linear, rng = design()
    y = linear + 0.7 * rng.normal(size=len(x))
    truth = sm.OLS(y, with_intercept_last(x)).fit()
    posterior = fit(pl.likelihoods.Normal(scale="learn"), x, y[:, None])
    variance = truth.ssr / len(x)
    np.testing.assert_allclose(posterior.model.constrain(posterior.mean)["likelihood.scale"], variance**0.5, rtol=1e-8)
    expected = np.zeros((5, 5))
    expected[:4, :4] = np.linalg.inv(with_intercept_last(x).T @ with_intercept_last(x)) * variance
    expected[4, 4] = 1 / (2 * len(x))
    np.testing.assert_allclose(posterior.covariance, expected, rtol=1e-6, atol=1e-9)


class BesideTheFirstClass(nn.Module):
    """Logits of all classes but the first, which has zero: a softmax has one logit too many."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(inputs, classes - 1).double()

    def forward(self, x):
        return nn.functional.pad(self.linear(x), (1, 0))


@pytest.mark.parametrize("batch_size", [512, 60])
def test_multinomial_regression_has_the_covariance_of_statsmodels(batch_size):
    x, _, rng = design(300)
    logits = np.concatenate([np.zeros((300, 1)), x @ rng.normal(size=(3, 2)) + [0.3, -0.5]], 1)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    truth = sm.MNLogit(y, with_intercept_last(x)).fit(disp=0, method="newton", tol=1e-12)
    posterior = fit(pl.likelihoods.Categorical(), x, y, BesideTheFirstClass(3, 3), batch_size=batch_size)
    params = truth.params  # (inputs, classes); its covariance goes class by class, intercepts inside
    weight, bias = posterior.mean["linear.weight"].numpy(), posterior.mean["linear.bias"].numpy()
    np.testing.assert_allclose(weight, params[:3].T, rtol=1e-6)
    np.testing.assert_allclose(bias, params[3], rtol=1e-6)
    order = [0, 1, 2, 4, 5, 6, 3, 7]
    expected = np.asarray(truth.cov_params())[np.ix_(order, order)]
    np.testing.assert_allclose(posterior.covariance, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_a_flat_prior_has_no_evidence_and_says_so():
    x, linear, rng = design()
    posterior = fit(pl.likelihoods.Normal(scale=0.7), x, (linear + rng.normal(size=len(x)))[:, None])
    with pytest.raises(pl.NotSupported, match="flat"):
        posterior.evidence()


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_an_over_parameterised_softmax_with_a_flat_prior_is_refused_where_a_variance_would_be_infinite(structure):
    """All logits may move together, so the curvature is singular, but no entry of its diagonal is zero."""
    x, _, rng = design()
    y = torch.as_tensor(rng.integers(0, 3, size=len(x)))
    model = pl.BayesianModel(nn.Linear(3, 3).double(), pl.likelihoods.Categorical(), pl.priors.Flat())
    run = lambda: pl.fit(model, (torch.as_tensor(x), y), pl.Laplace(structure=structure), **QUICK)  # noqa: E731
    if structure == "diagonal":
        assert torch.isfinite(run().scale["weight"]).all()
        return
    with pytest.raises(ValueError, match=r"singular.*pl\.priors\.Normal"):
        run()
