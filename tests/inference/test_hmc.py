"""HMC against normals, a gamma, and a hierarchical regression whose noise scale is integrated on a grid."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.oracles import anisotropic_covariance, assert_chains, effective_size, linear_regression
from torch import nn
from torch.distributions import constraints

import plausible as pl

QUIET = {"progress": False, "compile": False}
CHAINS = {
    "num_modes": 192,
    "steps": 270,
    **QUIET,
}  # 23,000 draws after 150 steps of warm-up; chains cost little, steps much
FEW = {"num_modes": 64, "steps": 270, **QUIET}


def chains_of(posterior, names=None):
    """(C, K, P) of all unknowns."""
    rows = [torch.cat([c.draws[k].reshape(len(c), -1) for k in names or c.draws], 1) for c in posterior.components]
    return torch.stack(rows)


def normal_target(mean, covariance):
    """Two tensors, so that the correlation also runs between names."""
    precision, half = torch.linalg.inv(covariance), len(mean) // 2

    def log_prob(p):
        z = torch.cat([p["a"], p["b"]]) - mean
        return -0.5 * z @ precision @ z

    start = torch.zeros_like(mean)
    return pl.LogDensity(log_prob, {"a": start[:half], "b": start[half:]})


CORRELATED = torch.tensor([[1.0, 9.0], [9.0, 100.0]], dtype=torch.float64)  # correlation 0.9, deviations 1 and 10


@pytest.mark.slow
def test_a_correlated_normal_has_its_mean_deviations_and_correlation():
    mean = torch.tensor([2.0, -5.0], dtype=torch.float64)
    method = pl.HMC(mass="full", warmup=250)
    posterior = pl.fit(normal_target(mean, CORRELATED), None, method, steps=400, num_modes=192, seed=1, **QUIET)
    assert_chains(chains_of(posterior), mean, CORRELATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mass, length, warmup, kept, chains",
    [("diagonal", None, 400, 500, 96), ("full", None, 400, 500, 96), ("identity", 15.0, 150, 250, 192)],
)
def test_every_mass_gives_the_same_law(mass, length, warmup, kept, chains):
    """Without a mass the trajectory must be as long as a quarter period of the widest direction, 10 π / 2."""
    mean = torch.tensor([2.0, -5.0], dtype=torch.float64)
    method = pl.HMC(mass=mass, trajectory_length=length, warmup=warmup)
    steps = warmup + kept
    posterior = pl.fit(normal_target(mean, CORRELATED), None, method, steps=steps, num_modes=chains, seed=2, **QUIET)
    assert_chains(chains_of(posterior), mean, CORRELATED)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10])
def test_a_normal_of_ten_dimensions_has_its_moments(size):
    covariance = 4 * anisotropic_covariance(size, 100.0, seed=3)
    mean = torch.linspace(-2, 3, size, dtype=torch.float64)
    posterior = pl.fit(normal_target(mean, covariance), None, pl.HMC(mass="full", warmup=150), seed=3, **CHAINS)
    assert_chains(chains_of(posterior), mean, covariance)


def test_a_step_size_and_a_length_that_are_given_are_used_and_exact_too():
    """No adaptation at all: only the accept step can make this right, and a coarse step makes it work for that."""
    mean = torch.tensor([0.5, 0.0], dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    method = pl.HMC(step_size=0.9, trajectory_length=1.8, mass="identity", warmup=20)
    posterior = pl.fit(normal_target(mean, covariance), None, method, steps=200, num_modes=192, seed=4, **QUIET)
    acceptance = torch.cat([c.statistics["acceptance"] for c in posterior.components]).mean()
    assert 0.6 < acceptance < 0.95
    assert_chains(chains_of(posterior), mean, covariance)


def test_a_positive_unknown_is_sampled_with_its_jacobian():
    gamma = stats.gamma(3.0, scale=1 / 2.0)

    def log_prob(p):
        return 2.0 * p["rate"].log() - 2.0 * p["rate"]

    density = pl.LogDensity(log_prob, {"rate": torch.tensor(1.0).double()}, support={"rate": constraints.positive})
    posterior = pl.fit(density, None, pl.HMC(warmup=150), seed=5, **CHAINS)
    draws = density.constrain({"rate": chains_of(posterior)[..., 0]})["rate"].numpy()
    # Moments, the tails' shares and the log, each within four errors of its own autocorrelation.
    tests = {
        gamma.mean(): draws,
        gamma.var() + gamma.mean() ** 2: draws**2,
        float(gamma.expect(np.log)): np.log(draws),
        0.05: (draws < gamma.ppf(0.05)).astype(float),
        0.95: (draws < gamma.ppf(0.95)).astype(float),
    }
    for truth, values in tests.items():
        worth = effective_size(values)
        assert worth >= 8000
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(worth)


def grid_posterior(truth, log_scales, log_hyperprior):
    """Weights out in closed form, log σ on a grid: p(log σ | y) and the moments of the weights."""
    a, y = truth.design.numpy(), truth.y.numpy()
    logs, means, seconds = [], [], []
    for log_scale in log_scales:
        variance = math.exp(2 * log_scale)
        covariance = np.linalg.inv(a.T @ a / variance + np.eye(a.shape[1]))
        mean = covariance @ a.T @ y / variance
        evidence = stats.multivariate_normal(np.zeros(len(y)), a @ a.T + variance * np.eye(len(y))).logpdf(y)
        logs.append(evidence + log_hyperprior(log_scale))
        means.append(mean)
        seconds.append(covariance + np.outer(mean, mean))
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    mean = np.tensordot(weight, np.array(means), 1)
    scale_mean = weight @ log_scales
    scale_sd = math.sqrt(weight @ (log_scales - scale_mean) ** 2)
    covariance = np.tensordot(weight, np.array(seconds), 1) - np.outer(mean, mean)
    return mean, covariance, scale_mean, scale_sd


@pytest.mark.slow
def test_an_unknown_noise_scale_agrees_with_brute_force_integration():
    truth = linear_regression(n=8, inputs=1, noise=0.5, seed=7)
    # Density of log σ: half-Cauchy of σ times dσ / d log σ = σ.
    hyperprior = lambda s: stats.halfcauchy.logpdf(math.exp(s)) + s  # noqa: E731
    mean, covariance, scale_mean, scale_sd = grid_posterior(truth, np.linspace(-4, 4, 4001), hyperprior)
    model = truth.model(likelihood=pl.likelihoods.Normal(scale=pl.hyperpriors.HalfCauchy()))
    posterior = pl.fit(model, truth.data(), pl.HMC(warmup=200), steps=750, num_modes=192, seed=6, **QUIET)
    chains = chains_of(posterior, ["weight", "bias", "likelihood.scale"]).numpy()
    sd = np.sqrt(np.diag(covariance))
    moments = [(chains[..., i], mean[i]) for i in range(2)]
    moments += [((chains[..., i] - mean[i]) ** 2, sd[i] ** 2) for i in range(2)]
    moments += [((chains[..., 0] - mean[0]) * (chains[..., 1] - mean[1]), covariance[0, 1])]
    moments += [(chains[..., 2], scale_mean), ((chains[..., 2] - scale_mean) ** 2, scale_sd**2)]
    for values, expected in moments:
        worth = effective_size(values)
        assert worth >= 8000, f"only {worth:.0f} effective draws"
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(worth)


@pytest.mark.slow
def test_conjugate_regression_has_its_closed_form_posterior():
    truth = linear_regression(n=15, inputs=3, noise=0.5, seed=9)
    posterior = pl.fit(truth.model(), truth.data(), pl.HMC(mass="full", warmup=150), seed=7, **FEW)
    assert_chains(chains_of(posterior, ["weight", "bias"]), truth.mean, truth.covariance, min_ess=2000)


@pytest.mark.slow
def test_a_tempered_posterior_is_as_much_wider_as_the_temperature_says():
    truth = linear_regression(n=15, inputs=1, noise=0.5, seed=9)
    model = pl.BayesianModel(torch.nn.Linear(1, 1).double(), pl.likelihoods.Normal(scale=0.5), temperature=0.5)
    posterior = pl.fit(model, truth.data(), pl.HMC(mass="full", warmup=150), seed=7, **FEW)
    assert_chains(chains_of(posterior, ["weight", "bias"]), truth.mean, 0.5 * truth.covariance, min_ess=2000)


@pytest.mark.slow
def test_the_posterior_of_one_half_as_prior_for_the_other_is_all_data_at_once():
    truth = linear_regression(n=30, inputs=2, noise=0.5, seed=8)
    half = truth.part(slice(0, 13))
    yesterday = pl.posteriors.Full(truth.model(), truth.params(half.mean), half.covariance)
    x, y = truth.data()
    model = truth.model(prior=yesterday)
    method = pl.HMC(mass="full", warmup=150)
    posterior = pl.fit(model, (x[13:], y[13:]), method, seed=8, **FEW)
    assert_chains(chains_of(posterior, ["weight", "bias"]), truth.mean, truth.covariance, min_ess=2000)


def test_a_loader_with_a_ragged_last_batch_counts_every_example_once():
    truth = linear_regression(n=11, inputs=1, noise=0.5, seed=5)
    x, y = truth.data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    method = pl.HMC(warmup=20, step_size=0.05, trajectory_length=0.5, mass="identity")
    by_loader = pl.fit(truth.model(), loader, method, steps=40, seed=0, **QUIET)
    by_tensors = pl.fit(truth.model(), (x, y), method, steps=40, seed=0, **QUIET)
    torch.testing.assert_close(by_loader.draws["weight"], by_tensors.draws["weight"], rtol=1e-9, atol=1e-9)


def test_modes_start_apart_and_move_apart():
    density = normal_target(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    posterior = pl.fit(density, None, pl.HMC(warmup=20), steps=40, num_modes=4, seed=0, **QUIET)
    first = chains_of(posterior)[:, 0]
    assert first.unique(dim=0).shape[0] == 4


def test_every_thin_th_draw_after_warm_up_is_kept():
    density = normal_target(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    every = pl.fit(density, None, pl.HMC(warmup=50, step_size=0.5), steps=80, seed=0, **QUIET)
    third = pl.fit(density, None, pl.HMC(warmup=50, step_size=0.5, thin=3), steps=80, seed=0, **QUIET)
    assert len(every) == 30 and len(third) == 10
    assert torch.equal(third.draws["a"], every.draws["a"][2::3])
    assert len(pl.fit(density, None, pl.HMC(), steps=100, seed=0, **QUIET)) == 60  # two fifths are warm-up


def test_noted_log_joints_are_those_of_the_draws():
    truth = linear_regression(n=10, inputs=1, seed=2)
    model = truth.model()
    posterior = pl.fit(model, truth.data(), pl.HMC(warmup=20), steps=40, seed=0, **QUIET)
    for k in (0, 7, 19):
        value = model.log_joint({n: d[k] for n, d in posterior.draws.items()}, truth.data(), num_data=10)
        torch.testing.assert_close(posterior.statistics["log_joint"][k], value)


def test_a_warm_up_that_leaves_no_draw_is_refused():
    density = normal_target(torch.zeros(2), torch.eye(2))
    with pytest.raises(ValueError, match="warm-up of 50"):
        pl.fit(density, None, pl.HMC(warmup=50), steps=50, **QUIET)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_size": 0.0},
        {"trajectory_length": -1.0},
        {"mass": "sparse"},
        {"warmup": -1},
        {"thin": 0},
        {"target_acceptance": 1.0},
    ],
)
def test_wrong_settings_are_refused_when_they_are_given(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pl.HMC(**wrong)


@pytest.mark.parametrize("steps", [50, 60, 80])
def test_a_short_warm_up_ends_with_a_step_size_that_is_accepted(steps):
    """Two or three steps after the last renewal of the mass left acceptances of zero, and one draw many times."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randn(40, 2)
    model = pl.BayesianModel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), pl.likelihoods.Normal())
    for seed in range(3):
        chain = pl.fit(model, (x, y), pl.HMC(), steps=steps, seed=seed, compile=False, device="cpu", progress=False)
        assert chain.statistics["acceptance"].mean() > 0.6
