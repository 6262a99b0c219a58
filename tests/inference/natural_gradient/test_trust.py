"""How far K-FAC goes between two looks at the curvature."""

import itertools

import pytest
import torch
from tests.inference.natural_gradient.kronecker_cases import fit, on_a_plateau
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient import trust

LEAST = 1e-4
WAY = {"w": torch.ones(2)}


def factors(curvature):
    return {"blocks": {}, "diagonal": {"w": torch.full((2,), float(curvature))}}


def after(*found, misfits=(1e6,)):
    """Trust after looks that find so many times the curvature that steps went by, each step as long as the last."""
    own, at = trust.first({"w": torch.zeros(2)}, LEAST), {"w": torch.zeros(2)}
    for ratio, misfit in zip(found, itertools.cycle(misfits)):  # noqa: B905
        at = {"w": at["w"] + WAY["w"]}
        own = trust.renewed(own, at, factors(1), factors(ratio), torch.tensor(misfit), LEAST)
    return float(own["trust"])


def test_trust_grows_while_looks_confirm_the_curvature_and_falls_where_they_do_not():
    assert after(1, 1, 1) == pytest.approx(8 * LEAST)
    assert after(1, 1, 1, 2) == pytest.approx(8 * LEAST)
    assert after(1, 1, 1, 10) == pytest.approx(2 * LEAST)
    assert after(10, 10, 10) == pytest.approx(LEAST)


def test_data_that_the_likelihood_expects_have_no_more_than_the_least():
    assert after(*[1] * 20, misfits=[2.0]) == pytest.approx(LEAST)
    assert after(*[1] * 20, misfits=[500.0]) == pytest.approx(trust.MOST * 100)


def test_residuals_that_grow_are_no_reason_for_longer_steps():
    assert after(1, 1, 1, misfits=(1.0, 1e9, 1e9)) == pytest.approx(LEAST)
    assert after(1, 1, 1, misfits=(1e6, float("nan"), float("nan"))) == pytest.approx(8 * LEAST)


def test_residuals_that_no_look_could_tell_are_no_reason_for_longer_steps():
    assert after(1, 1, 1, misfits=[float("nan")]) == pytest.approx(LEAST)


def test_a_first_look_says_nothing_of_steps_that_there_were_not():
    own = trust.first({"w": torch.zeros(2)}, LEAST)
    found = trust.renewed(own, {"w": torch.zeros(2)}, factors(0), factors(1), torch.tensor(1e6), LEAST)
    assert float(found["trust"]) == pytest.approx(LEAST)


@pytest.mark.parametrize("method", [pl.KFAC(), pl.NoisyKFAC()])
@pytest.mark.parametrize(("noise", "size"), [(0.5, 60), (0.05, 60), (0.005, 60), (0.05, 20)])
def test_a_line_is_found_however_small_the_noise(method, noise, size):
    """Thousands of nats away at first, where steps of a fixed number of nats would take as many."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=rng).double()
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + noise * torch.randn(60, 1, generator=rng).double()
    network = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=noise), prior=pl.priors.Normal(scale=3.0))
    posterior = fit(model, (x, y), method, steps=400, batch_size=size)
    covariance = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(3).double() / 9)
    exact = (covariance @ x.T @ y / noise**2).flatten()
    away = (posterior.mean["weight"].flatten() - exact) / covariance.diagonal().sqrt()
    assert away.abs().max() < (0.25 if isinstance(method, pl.NoisyKFAC) or size < 60 else 0.02)


def test_a_deep_network_in_regression_is_not_blown_up():
    network, (x, _) = on_a_plateau()
    y = x[:, 20:21] * x[:, 30:31] - x[:, 40:41]
    network[-1] = nn.Linear(64, 1)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.02))
    posterior = fit(model, (x, y), pl.KFAC(), steps=200, batch_size=128)
    found = pl.posteriors.Delta(posterior.model, posterior.mean).predict(x).mean
    assert (found - y).square().mean() < 0.05 * y.var()


@pytest.mark.parametrize("method", [pl.KFAC(), pl.NoisyKFAC()])
@pytest.mark.parametrize(("count", "size"), [(64, 16), (64, 128), (200, 128)])
def test_a_learnt_noise_does_not_run_away_from_residuals_that_are_large_at_first(method, count, size):
    """(residual / noise)² is 400 at first; with that in the momentum noises ended at four to ten times the residuals."""
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(0))
    y = 10 * x.sum(1, keepdim=True) + 3 * torch.randn(count, 1, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale="learn"))
    found = pl.fit(model, (x, y), method, epochs=50, batch_size=size, progress=False, device="cpu").predict(x)
    residual = float((found.mean - y).square().mean()) ** 0.5
    assert residual < float(y.std())
    assert 1 / 3 < float(found.aleatoric.mean()) ** 0.5 / residual < 3


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_learnt_noise_is_the_most_likely_one_whatever_the_batches(size):
    """Of one example (residual / noise)² is often far from one, and what its step is bounded by must not move the average."""
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(400, 1, generator=torch.Generator().manual_seed(1))
    inputs = torch.cat([x, torch.ones(400, 1)], 1)
    residuals = y - inputs @ torch.linalg.lstsq(inputs, y).solution
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale="learn"))
    found = pl.fit(model, (x, y), pl.KFAC(), steps=4000, batch_size=size, progress=False, device="cpu")
    told = float(found.mean["likelihood.scale"].exp())
    assert told == pytest.approx(float(residuals.square().mean()) ** 0.5, rel=0.02)


@pytest.mark.parametrize("schedule", ["constant", "one-cycle", lambda progress: 1.0])
@pytest.mark.parametrize("modes", [1, 2])
def test_a_learnt_noise_goes_with_every_schedule(schedule, modes):
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=torch.Generator().manual_seed(1))
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale="learn"))
    method = pl.KFAC(schedule=schedule, learning_rate=0.3, trust=1.0)
    found = pl.fit(model, (x, y), method, steps=200, num_modes=modes, progress=False, device="cpu").predict(x)
    assert 0.08 < float(found.aleatoric.mean()) ** 0.5 < 0.12


@pytest.mark.parametrize("method", [pl.KFAC(), pl.NoisyKFAC()])
def test_looks_that_found_no_number_are_told_in_the_diagnostics(method):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=g), torch.randint(0, 2, (40,), generator=g)
    x[7] = 1e25  # whose square is no float32
    model = pl.BayesianModel(nn.Linear(3, 2), pl.likelihoods.Categorical())
    posterior = pl.fit(model, (x, y), method, epochs=5, batch_size=10, progress=False, device="cpu")
    told = posterior.diagnostics()
    assert not told.ok and any("batches that" in m and "was not finite" in m for m in told.messages)
