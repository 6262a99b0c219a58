"""Laplace where it is exact: linear regression with normal noise and a normal prior."""

import pytest
import torch
from tests.oracles import LinearRegression, linear_regression, vector_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plausible as pl

EXACT = 1e-9
QUICK = {"init": "network", "epochs": 0, "progress": False}


def fit(problem: LinearRegression, data=None, method=None, model=None, **settings):
    method = method or pl.Laplace(structure="full")
    return pl.fit(model or problem.model(), problem.data() if data is None else data, method, **{**QUICK, **settings})


def assert_exact(posterior, problem: LinearRegression, rtol: float = EXACT) -> None:
    torch.testing.assert_close(vector_of(posterior.mean), problem.mean, rtol=rtol, atol=rtol)
    torch.testing.assert_close(posterior.covariance, problem.covariance, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("batch_size", [64, 7])
@pytest.mark.parametrize("n, inputs, prior_scale, noise", [(20, 3, 1.3, 0.5), (200, 12, 0.4, 2.0), (5, 9, 2.0, 0.1)])
def test_posterior_and_evidence_of_linear_regression_are_exact(n, inputs, prior_scale, noise, batch_size):
    problem = linear_regression(n, inputs, noise, prior_scale=prior_scale)
    posterior = fit(problem, batch_size=batch_size)
    assert_exact(posterior, problem)
    evidence = posterior.evidence()
    assert evidence.kind == "laplace" and evidence.standard_error == 0.0
    assert float(evidence.log_marginal_likelihood) == pytest.approx(problem.log_evidence, abs=1e-8)


def test_training_first_ends_at_the_same_posterior():
    problem = linear_regression()
    posterior = fit(problem, init=None, epochs=20, batch_size=8)
    assert_exact(posterior, problem)


def test_single_precision_is_exact_to_its_own_digits():
    problem = linear_regression()
    posterior = fit(problem, problem.data(torch.float32), model=problem.model(torch.float32))
    torch.testing.assert_close(vector_of(posterior.mean).double(), problem.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(posterior.covariance.double(), problem.covariance, rtol=1e-5, atol=1e-5)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(problem.log_evidence, abs=1e-3)


def weighted(problem: LinearRegression) -> LinearRegression:
    weights = 0.2 + torch.rand(len(problem.y), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return LinearRegression(
        problem.x, problem.y, problem.noise, problem.prior_mean, problem.prior_covariance, weights, problem.bias
    )


def log_evidence_with_weights(problem: LinearRegression) -> float:
    """log ∫ Π N(yᵢ; aᵢ w, σ²)^ωᵢ N(w; 0, S) dw: the weighted log joint is quadratic in w."""
    a, w, s = problem.design, problem.weights, problem.prior_covariance
    normal = torch.distributions.Normal(a @ problem.mean, problem.noise)
    joint = (w * normal.log_prob(problem.y)).sum() + torch.distributions.MultivariateNormal(
        problem.prior_mean, s
    ).log_prob(problem.mean)
    two_pi = torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    return float(joint + 0.5 * len(s) * two_pi + 0.5 * torch.logdet(problem.covariance))


@pytest.mark.parametrize("batch_size", [64, 6])
def test_examples_count_by_their_weights(batch_size):
    problem = weighted(linear_regression())
    x, y = problem.data()
    posterior = fit(problem, (x, y, problem.weights), batch_size=batch_size)
    assert_exact(posterior, problem)
    truth = log_evidence_with_weights(problem)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)
    exact = pl.evidence.exact(problem.model(), (x, y, problem.weights))
    assert float(exact.log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)


def test_data_that_stand_for_more_than_they_are_count_as_often():
    problem = linear_regression()
    thrice = LinearRegression(
        problem.x, problem.y, problem.noise, problem.prior_mean, problem.prior_covariance, 3 * problem.weights
    )
    posterior = fit(problem, num_data=60)
    assert_exact(posterior, thrice)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(
        log_evidence_with_weights(thrice), abs=1e-8
    )


@pytest.mark.parametrize("wrap", [TensorDataset, lambda *d: DataLoader(TensorDataset(*d), batch_size=7, shuffle=True)])
@pytest.mark.parametrize("with_weights", [False, True])
def test_datasets_and_loaders_give_the_same_posterior(wrap, with_weights):
    problem = weighted(linear_regression()) if with_weights else linear_regression()
    data = (*problem.data(), problem.weights) if with_weights else problem.data()
    settings = {"num_data": float(problem.weights.sum())} if with_weights else {}
    posterior = fit(problem, wrap(*data), **settings)
    assert_exact(posterior, problem)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(
        log_evidence_with_weights(problem), abs=1e-8
    )


# --- some of the weights ---


def hidden_then_linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def features_problem(network: nn.Module, problem: LinearRegression, scale: float) -> LinearRegression:
    features = network[:2](problem.x).detach()
    eye = torch.eye(7, dtype=torch.float64)
    return LinearRegression(features, problem.y, problem.noise, eye[0] * 0, scale**2 * eye, problem.weights)


@pytest.mark.parametrize("subset", ["last-layer", "2.*", ["2.weight", "2.bias"], lambda name: name.startswith("2.")])
def test_the_last_layer_alone_is_linear_regression_on_its_features(subset):
    problem, network = linear_regression(40), hidden_then_linear()
    truth = features_problem(network, problem, 0.7)
    prior, noise = pl.priors.Normal(scale=0.7), pl.likelihoods.Normal(scale=problem.noise)
    model = pl.BayesianModel(network, noise, prior)
    posterior = fit(problem, model=model, method=pl.Laplace(structure="full", subset=subset))
    last = {k: v for k, v in posterior.mean.items() if k.startswith("2.")}
    torch.testing.assert_close(vector_of(last), truth.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(posterior.covariance, truth.covariance, rtol=EXACT, atol=EXACT)
    assert all(torch.equal(posterior.mean[k], network.state_dict()[k]) for k in ("0.weight", "0.bias"))
    evidence = float(posterior.evidence().log_marginal_likelihood)
    only = pl.BayesianModel(network, noise, prior, parameters="2.*")
    exact = pl.evidence.exact(only, problem.data())
    assert float(exact.log_marginal_likelihood) == pytest.approx(truth.log_evidence, abs=1e-8)
    assert evidence == pytest.approx(truth.log_evidence, abs=1e-8)


@pytest.mark.parametrize("subset", ["weight", "bias"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker", "low-rank"])
def test_evidence_of_a_subset_is_that_of_a_model_with_these_parameters(subset, structure):
    problem = linear_regression(bias=True)
    network = nn.Linear(3, 1).double()
    prior = {"weight": pl.priors.Normal(scale=0.7), "bias": pl.priors.Normal(scale=2.0)}
    noise = pl.likelihoods.Normal(scale=problem.noise)
    own = pl.BayesianModel(network, noise, prior[subset], parameters=subset)
    some = fit(
        problem, model=pl.BayesianModel(network, noise, prior), method=pl.Laplace(structure="full", subset=subset)
    )
    exact = float(pl.evidence.exact(own, problem.data()).log_marginal_likelihood)
    assert float(some.evidence().log_marginal_likelihood) == pytest.approx(exact, abs=1e-8)
    # Whatever the structure, the two ways to say it are one.
    at = {"init": some, "method": pl.Laplace(structure=structure, subset=subset)}
    one = fit(problem, model=pl.BayesianModel(network, noise, prior), **at)
    other = fit(problem, model=own, init={subset: some.mean[subset]}, method=pl.Laplace(structure=structure))
    one, other = (float(p.evidence().log_marginal_likelihood) for p in (one, other))
    assert one == pytest.approx(other, abs=1e-8)


def test_fixed_hyperparameters_outside_of_the_subset_bring_no_density():
    """The noise scale has a prior, but where it does not vary it is part of the model."""
    problem, network = linear_regression(40), hidden_then_linear()
    unknown = pl.BayesianModel(network, pl.likelihoods.Normal(scale=pl.hyperpriors.HalfNormal(scale=2.0)))
    posterior = fit(problem, model=unknown, method=pl.Laplace(structure="full", subset="last-layer"))
    noise = float(unknown.constrain(posterior.mean)["likelihood.scale"])
    known = pl.BayesianModel(network, pl.likelihoods.Normal(scale=noise), parameters="2.*")
    exact = float(pl.evidence.exact(known, problem.data()).log_marginal_likelihood)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(exact, abs=1e-8)


# --- several outputs, other shapes of linear ---


@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_several_outputs_are_as_many_regressions(structure):
    """With one noise for all, a Kronecker block is exact: the Gram matrix of the inputs ⊗ the identity."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=rng, dtype=torch.float64)
    y = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    model = pl.BayesianModel(nn.Linear(3, 2).double(), pl.likelihoods.Normal(scale=0.4), pl.priors.Normal(scale=0.9))
    at_top = pl.fit(model, (x, y), pl.Laplace(structure="full"), **QUICK)
    posterior = pl.fit(model, (x, y), pl.Laplace(structure=structure), **{**QUICK, "init": at_top})
    eye = torch.eye(4, dtype=torch.float64)
    truths = [LinearRegression(x, y[:, k], 0.4, eye[0] * 0, 0.81 * eye, torch.ones(30).double()) for k in range(2)]
    total = sum(t.log_evidence for t in truths)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(total, abs=1e-8)
    assert float(pl.evidence.exact(model, (x, y)).log_marginal_likelihood) == pytest.approx(total, abs=1e-8)
    vectors = torch.eye(8, dtype=torch.float64)
    halves = posterior.unscatter(vectors)
    covariance = halves @ halves.T
    for k, t in enumerate(truths):
        torch.testing.assert_close(posterior.mean["weight"][k], t.mean[:3], rtol=1e-8, atol=1e-8)
        rows = [3 * k, 3 * k + 1, 3 * k + 2, 6 + k]
        torch.testing.assert_close(covariance[rows][:, rows], t.covariance, rtol=1e-8, atol=1e-8)
    assert covariance[[0, 1, 2, 6]][:, [3, 4, 5, 7]].abs().max() < 1e-12


@pytest.mark.parametrize("temperature", [0.1, 2.0])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker", "low-rank"])
def test_temperature_scales_the_covariance(structure, temperature):
    problem = linear_regression()
    at_top = fit(problem)
    method = pl.Laplace(structure=structure)
    plain = fit(problem, method=method, init=at_top)
    warm = pl.BayesianModel(
        problem.model().source, pl.likelihoods.Normal(scale=problem.noise), pl.priors.Normal(), temperature=temperature
    )
    tempered = fit(problem, model=warm, method=method, init=at_top.mean)
    vectors = torch.eye(4, dtype=torch.float64)
    one, other = ((p.unscatter(vectors) @ p.unscatter(vectors).T) for p in (plain, tempered))
    torch.testing.assert_close(other, temperature * one, rtol=1e-9, atol=1e-12)
    with pytest.raises(pl.NotSupported, match="tempered"):
        tempered.evidence()
    with pytest.raises(pl.NotSupported, match="tempered"):
        pl.evidence.laplace(warm, at_top.mean, problem.data())
    with pytest.raises(pl.NotSupported, match="tempered"):
        pl.evidence.exact(warm, problem.data())


@pytest.mark.parametrize("structure", ["full", "kronecker", "low-rank"])
def test_predictions_are_the_conjugate_ones(structure):
    problem = linear_regression()
    posterior = fit(problem, method=pl.Laplace(structure=structure, rank=4), init=fit(problem))
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    design = torch.cat([x, torch.ones(9, 1, dtype=torch.float64)], 1)
    variance = (design @ problem.covariance * design).sum(1)
    mean, spread = pl.core.linearised.output_moments(posterior, x, 1 << 28)
    torch.testing.assert_close(mean[:, 0], design @ problem.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(spread[:, 0], variance, rtol=1e-6, atol=1e-9)
