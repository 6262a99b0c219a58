"""Priors with unknown scales in everything that runs the network: samplers, point methods, Laplace, predictions, files."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from tests.core.unknown_scales import (
    PRIORS,
    Hierarchical,
    Horseshoe,
    InverseGamma,
    data,
    model_with,
    scattered,
    small_network,
)
from torch import nn
from torch.func import jacrev

import plausible as pl
from plausible.core.diagnostics import ess
from plausible.core.errors import NotSupported
from plausible.weights.algebra import from_vector, to_vector


def linear_problem(n=12, k=4):
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(n, k, generator=rng).double()
    y = x @ torch.randn(k, 1, generator=rng).double() * 0.7 + 0.4 * torch.randn(n, 1, generator=rng).double()
    torch.manual_seed(0)
    return nn.Linear(k, 1, bias=False).double(), x, y


@pytest.mark.slow
def test_hmc_finds_the_posterior_of_a_scale_that_quadrature_finds():
    network, x, y = linear_problem()
    model = model_with(Hierarchical(hyperprior=pl.hyperpriors.HalfCauchy(), per="network"), network=network, noise=0.4)
    posterior = pl.fit(model, (x, y), pl.HMC(trajectory_length=1.5), steps=1200, num_modes=4, progress=False)
    logs = torch.stack([c.draws["prior.scale"] for c in posterior.components])

    def joint(u):
        s = math.exp(u)
        law = stats.multivariate_normal(np.zeros(12), s**2 * (x @ x.T).numpy() + 0.16 * np.eye(12))
        return np.exp(law.logpdf(y.numpy()[:, 0]) + 30) * stats.halfcauchy.pdf(s) * s

    total, mean, square = (integrate.quad(lambda u, p=p: u**p * joint(u), -8, 8, limit=200)[0] for p in range(3))
    mean, deviation = mean / total, math.sqrt(square / total - (mean / total) ** 2)
    effective = float(ess(logs))
    assert effective > 150
    error = deviation / math.sqrt(effective)
    assert abs(float(logs.mean()) - mean) < 4 * error
    assert abs(float(logs.std()) / deviation - 1) < 4 / math.sqrt(effective)
    weights = torch.cat([c.model.constrain(c.draws)["weight"] for c in posterior.components])
    torch.testing.assert_close(
        posterior.predict(x, num_samples=4096).mean, (weights @ x.T).mean(0).T, rtol=0.05, atol=0.02
    )


def highest(model, batch):
    start = model.init()

    def downhill(vector):
        value, slope = model.slope(from_vector(torch.tensor(vector), start), batch)
        return -float(value), -to_vector(slope).numpy()

    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9}
    best = optimize.minimize(downhill, to_vector(start).numpy(), jac=True, method="L-BFGS-B", options=options)
    return from_vector(torch.tensor(best.x), start)


def test_point_methods_climb_the_density_of_natural_weights():
    network, x, y = linear_problem()
    model = model_with(Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per="network"), network=network, noise=0.4)
    seen = []
    method = pl.MAP(learning_rate=1e-6)
    posterior = pl.fit(model, (x, y), method, steps=1, batch_size=12, progress=False, callbacks=[seen.append])
    start = model.init()
    expected = model.log_joint(start, (x, y), num_data=12) - 4 * start["prior.scale"]  # less log |∂w / ∂z|
    assert float(seen[0]["log_joint"]) == pytest.approx(float(expected), abs=1e-9)
    assert posterior.model.seeks_mode is False


@pytest.mark.parametrize("per", ["network", "unit", "input"])
def test_the_highest_point_does_not_depend_on_how_the_model_is_written(per):
    network, x, y = linear_problem()
    found = []
    for centred in (False, True):
        prior = Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per=per, centred=centred)
        model = model_with(prior, network=network, noise=0.4)
        found.append(model.constrain(highest(model.bound(num_data=12, seeks_mode=True), (x, y))))
    for k in found[0]:
        torch.testing.assert_close(found[0][k], found[1][k], rtol=1e-4, atol=1e-5)
    if per == "network":  # d/du of −k u − Σw²/2s² − 2a u − b/s² is zero there, with u = log s
        squares = float((found[0]["weight"] ** 2).sum())
        assert float(found[0]["prior.scale"]) ** 2 == pytest.approx((squares + 1.0) / (4 + 4), rel=1e-4)


@pytest.mark.parametrize("structure", ["full", "diagonal", "low-rank"])
def test_laplace_of_a_non_centred_model_is_the_exact_posterior_at_the_scale_found(structure):
    network, x, y = linear_problem()
    prior = Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per="input")
    model = model_with(prior, network=network, noise=0.4)
    method = pl.Laplace(structure=structure, rank=4, base=pl.MAP(learning_rate=0.05))
    posterior = pl.fit(model, (x, y), method, steps=30, batch_size=12, progress=False)
    natural = posterior.model.constrain(posterior.sample(50_000, seed=0))
    scale = natural["prior.scale"]
    assert torch.equal(scale[0], scale[-1])
    precision = x.T @ x / 0.16 + torch.diag(scale[0, 0] ** -2)
    covariance = torch.linalg.inv(precision) if structure != "diagonal" else torch.diag(1 / precision.diagonal())
    sample = natural["weight"][:, 0].T.cov()
    torch.testing.assert_close(sample, covariance, rtol=0.05, atol=0.05 * float(covariance.abs().max()))
    spread = posterior.predict(x, num_samples=20_000).outputs.var(0)[:, 0]
    torch.testing.assert_close(spread, (x @ covariance * x).sum(1), rtol=0.06, atol=1e-4)
    if structure == "full":
        law = stats.multivariate_normal(
            np.zeros(12), ((x * scale[0, 0] ** 2) @ x.T + 0.16 * torch.eye(12).double()).numpy()
        )
        value = float(posterior.evidence().log_marginal_likelihood)
        assert value == pytest.approx(law.logpdf(y[:, 0].numpy()), abs=1e-3)


def test_kronecker_factors_of_products_are_refused_with_the_way_out():
    model = model_with(Hierarchical(hyperprior=InverseGamma()))
    with pytest.raises(NotSupported, match="centred=True"):
        pl.fit(model, data(), pl.Laplace(), steps=2, progress=False)


def test_kronecker_factors_of_a_centred_hierarchy_are_there():
    model = model_with(Hierarchical(hyperprior=InverseGamma(), centred=True))
    posterior = pl.fit(model, data(), pl.Laplace(), steps=50, progress=False)
    assert bool(posterior.predict(data()[0]).variance.isfinite().all())


def test_a_linearised_prediction_varies_scales_and_weights_together():
    model = model_with(Hierarchical(per="unit"))
    mean = scattered(model)
    scale = {k: torch.full_like(v, 0.01) for k, v in mean.items()}
    posterior = pl.posteriors.Diagonal(model, mean, scale)
    x = data(3)[0]
    jacobians = jacrev(lambda p: model.outputs(p, x))(mean)
    expected = sum((0.01 * jacobians[k].flatten(2)).square().sum(-1) for k in mean)
    found = posterior.predict(x, num_samples=20_000, linearised=True).outputs.var(0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.0)


def test_norm_statistics_are_those_of_natural_weights():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    model = model_with(Hierarchical(hyperprior=InverseGamma(3.0, 0.1)), network=network)
    x, y = data(64)
    posterior = pl.fit(model, (x, y), pl.MAP(learning_rate=0.01), steps=20, batch_size=64, progress=False)
    natural = model.constrain(posterior.mean)
    expected = (x @ natural["0.weight"].T + natural["0.bias"]).mean(0)
    torch.testing.assert_close(posterior.bank["1.running_mean"][0], expected)


@pytest.mark.parametrize("name", PRIORS)
def test_a_saved_posterior_predicts_the_same_after_loading(name, tmp_path):
    model = model_with(PRIORS[name])
    posterior = pl.fit(model, data(), pl.HMC(trajectory_length=0.1), steps=10, progress=False)
    posterior.save(tmp_path / "posterior")
    loaded = pl.load(tmp_path / "posterior", small_network())
    x = data()[0]
    assert torch.equal(loaded.predict(x).outputs, posterior.predict(x).outputs)
    assert loaded.model.prior == posterior.model.prior


@pytest.mark.parametrize("prior", [Hierarchical(), Hierarchical(centred=True), Horseshoe()])
def test_point_methods_refuse_hyperpriors_that_do_not_vanish_at_zero(prior):
    with pytest.raises(NotSupported, match="InverseGamma"):
        pl.fit(model_with(prior), data(), pl.MAP(), steps=2, progress=False)


@pytest.mark.slow
def test_relevance_determination_finds_the_useless_inputs_of_friedmans_function():
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_samples=150, n_features=10, noise=0.5, random_state=0)  # inputs 5 to 9 do not count
    x, y = torch.tensor(x * 2 - 1), torch.tensor((y - y.mean()) / y.std()).unsqueeze(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    prior = {"0.weight": Hierarchical(per="input"), "*": pl.priors.Normal(1.0)}
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.15), prior=prior)
    posterior = pl.fit(model, (x, y), pl.HMC(trajectory_length=0.5), steps=400, progress=False)
    logs = model.constrain(posterior.draws)["prior.0.weight.0.scale"].log().mean(0)[0]
    useful, useless = logs[:5], logs[5:]
    assert float((useful.mean() - useless.mean()).exp()) > 5, logs.exp()
    assert float(useful.min()) > float(useless.max()), logs.exp()
