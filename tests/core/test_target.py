"""The slope: what autograd says of the log joint, for every prior, lone and inside vmap."""

import pytest
import torch
from tests.core.small_regression import N, data, network
from tests.oracles import linear_regression, vector_of
from torch import nn

import plausible as pl
from plausible.core.model import InternalBatch

PRIORS = {
    "Normal": pl.priors.Normal(scale=0.7),
    "Laplace": pl.priors.Laplace(scale=0.5),
    "Cauchy": pl.priors.Cauchy(scale=0.3),
    "StudentT": pl.priors.StudentT(df=3.0, scale=0.6),
    "ScaleMixture": pl.priors.ScaleMixture(scales=(0.1, 1.0), weights=(0.3, 0.7)),
    "Flat": pl.priors.Flat(),
    "fan_in": pl.priors.fan_in(pl.priors.Laplace(scale=1.2)),
    "patterns": {"0.*": pl.priors.Laplace(), "*.bias": pl.priors.Cauchy(), "*": pl.priors.Normal(scale=2.0)},
    "hierarchical": pl.priors.Normal(scale=pl.hyperpriors.LogNormal()),
}


class Scoreless:
    """A user's own prior without a formula for its score."""

    def log_prob(self, w):
        return -0.25 * w**4


def gradients(model, params, batch, num_data):
    leaves = {k: p.detach().clone().requires_grad_() for k, p in params.items()}
    value = model.log_joint(leaves, batch, num_data=num_data)
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return value.detach(), dict(zip(leaves, found, strict=True))


def model_of(prior, scale=0.5, temperature=0.8):
    return pl.BayesianModel(network(), pl.likelihoods.Normal(scale=scale), prior=prior, temperature=temperature)


@pytest.mark.parametrize("scale", [0.5, "learn"])
@pytest.mark.parametrize("name", [*PRIORS, "scoreless"])
def test_the_slope_is_autograds_of_the_log_joint(name, scale):
    model = model_of(PRIORS.get(name, Scoreless()), scale)
    params = model.init(5)
    value, slopes = model.slope(params, data(), num_data=40)
    expected, truth = gradients(model, params, data(), 40)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    for k in params:
        torch.testing.assert_close(slopes[k], truth[k], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["Normal", "patterns", "hierarchical", "scoreless"])
def test_the_slope_of_the_likelihood_has_its_temperature_and_no_prior(name):
    model = model_of(PRIORS.get(name, Scoreless()), temperature=0.8).bound(num_data=40.0)
    params, (x, y) = model.init(5), data()
    batch = InternalBatch((x, y, torch.full((N,), 40 / N, dtype=torch.float64)))
    value, slopes = model.likelihood_slope(params, batch)
    leaves = {k: p.detach().clone().requires_grad_() for k, p in params.items()}
    expected = model.log_likelihood(leaves, (x, y)) * (40 / N) / 0.8
    truth = torch.autograd.grad(expected, list(leaves.values()), materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-10)
    for k, slope in zip(leaves, truth, strict=True):
        torch.testing.assert_close(slopes[k], slope, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [0.5, pl.hyperpriors.HalfCauchy()])
@pytest.mark.parametrize("name", [*PRIORS, "scoreless"])
def test_inside_vmap_every_mode_has_the_slope_of_its_lone_twin(name, scale):
    model = model_of(PRIORS.get(name, Scoreless()), scale).bound(num_data=40.0)
    modes = [model.init(s) for s in range(3)]
    stacked = {k: torch.stack([m[k] for m in modes]) for k in modes[0]}
    x, y = data()
    batch = InternalBatch((x, y, torch.full((N,), 40 / N, dtype=torch.float64)))
    value, slopes = torch.vmap(model.slope, in_dims=(0, None))(stacked, batch)
    for m, params in enumerate(modes):
        expected, truth = gradients(model, params, (x, y), 40)
        torch.testing.assert_close(value[m], expected, rtol=1e-10, atol=1e-10)
        for k in params:
            torch.testing.assert_close(slopes[k][m], truth[k], rtol=1e-10, atol=1e-10)


def test_inside_vmap_modes_may_have_batches_of_their_own_and_share_weights():
    model = model_of(PRIORS["Normal"]).bound(num_data=40.0)
    params = model.init(1)
    batches = [data(seed=s) for s in range(3)]
    weights = torch.full((3, N), 40 / N, dtype=torch.float64)
    batch = InternalBatch((torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches]), weights))
    _, slopes = torch.vmap(model.slope, in_dims=(None, 0))(params, batch)
    for m, own in enumerate(batches):
        _, truth = gradients(model, params, own, 40)
        for k in params:
            torch.testing.assert_close(slopes[k][m], truth[k], rtol=1e-10, atol=1e-10)


def test_a_posterior_as_prior_contributes_its_density_and_slope():
    truth = linear_regression(n=10, inputs=2, seed=1)
    half = truth.part(slice(0, 5))
    yesterday = pl.posteriors.Full(truth.model(), truth.params(half.mean), half.covariance)
    model = truth.model(prior=yesterday)
    params = truth.params(torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64))
    expected = torch.distributions.MultivariateNormal(half.mean, half.covariance).log_prob(vector_of(params))
    torch.testing.assert_close(model.log_prior(params), expected, rtol=1e-10, atol=1e-10)
    x, y = truth.data()
    _, slopes = model.slope(params, (x[5:], y[5:]), num_data=5)
    by_hand = torch.linalg.solve(truth.covariance, truth.mean - vector_of(params))  # of the whole Gaussian posterior
    torch.testing.assert_close(vector_of(slopes), by_hand, rtol=1e-9, atol=1e-9)


class TwoBiases(nn.Module):
    """Autograd hands out one tensor as the slope of both biases, and an expanded one for a weight that is summed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.first, self.second = nn.Parameter(torch.tensor([0.3, 0.5])), nn.Parameter(torch.tensor([0.2, -0.7]))
        self.summed = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x):
        return self.layer(x) * self.summed.sum() + (self.first + self.second)


@pytest.mark.parametrize("modes", [1, 4])
@pytest.mark.parametrize("prior", [pl.priors.Normal(scale=0.7), pl.priors.Flat(), Scoreless()])
def test_slopes_that_autograd_shares_between_weights_are_right_after_they_are_written_into(prior, modes):
    torch.manual_seed(0)
    model = pl.BayesianModel(TwoBiases().double(), pl.likelihoods.Normal(scale=0.5), prior=prior)
    start = model.init()
    _, expected = gradients(model, start, data(), N)
    _, found = model.slope(start, data(), num_data=N)
    method = pl.MAP(optimizer="sgd", momentum=0.0, learning_rate=0.1, schedule="constant")
    starts = {k: w.expand(modes, *w.shape) for k, w in start.items()} if modes > 1 else start
    settings = {"steps": 1, "batch_size": N, "num_modes": modes, "init": starts, "device": "cpu", "progress": False}
    moved = pl.fit(model, data(), method, vectorise=True, **settings).components[-1].mean
    for k, slope in expected.items():
        torch.testing.assert_close(found[k], slope, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close((moved[k] - start[k]) / 0.1 * N, slope, rtol=1e-9, atol=1e-9)


def test_a_density_that_sums_its_unknowns_can_be_climbed():
    density = pl.LogDensity(lambda p: p["a"].sum() - (p["b"] ** 2).sum(), {"a": torch.zeros(3), "b": torch.ones(2)})
    method = pl.MAP(optimizer="sgd", momentum=0.0, learning_rate=0.1, schedule="constant")
    found = pl.fit(density, None, method, steps=2, device="cpu", progress=False).mean
    torch.testing.assert_close(found, {"a": torch.full((3,), 0.2), "b": torch.full((2,), 0.64)})
