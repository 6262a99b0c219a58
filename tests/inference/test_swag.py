"""SWAG against snapshots that the test records itself, and against the published running algorithm in numpy."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.oracles import assert_moments, vector_of
from torch import nn

import plausible as pl
from plausible.weights.tree import num_bytes


def two_layers(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)


def data(dtype=torch.float64, n=40):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=rng, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) + 0.3 * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


class Recording(pl.SWAG):
    """SWAG that also writes down, apart from its own averages, the weights of every kept moment."""

    def keep(self, model, state):
        SNAPSHOTS.append(vector_of(state["params"]).clone().double().numpy())
        return super().keep(model, state)


SNAPSHOTS: list[np.ndarray] = []


def run(dtype=torch.float64, steps=60, **settings):
    SNAPSHOTS.clear()
    method = Recording(base=pl.MAP(optimizer="sgd", learning_rate=0.1), **settings)
    model = pl.BayesianModel(two_layers(dtype), pl.likelihoods.Normal(scale=0.3))
    posterior = pl.fit(model, data(dtype), method, steps=steps, batch_size=8, progress=False, compile=False)
    return posterior, np.stack(SNAPSHOTS)


def stated_covariance(posterior):
    """diag + Σ f fᵀ from what the posterior stores."""
    factors = vector_of(posterior.factors, 1).double()
    return (torch.diag(vector_of(posterior.variance).double()) + factors.T @ factors).numpy()


def snapshot_covariance(w, scale=1.0):
    """½ [ 1/(T−1) Σ (wₜ − w̄)(wₜ − w̄)ᵀ + diag(1/T Σ (wₜ − w̄)²) ] · scale."""
    deviations = w - w.mean(0)
    return 0.5 * scale * (deviations.T @ deviations / (len(w) - 1) + np.diag((deviations**2).mean(0)))


def published_covariance(w, rank, scale=1.0):
    """Algorithm 1 of Maddox et al.: running moments, and the last K deviations from the running mean."""
    mean, second, columns = np.zeros(w.shape[1]), np.zeros(w.shape[1]), []
    for n, snapshot in enumerate(w):
        mean = (n * mean + snapshot) / (n + 1)
        second = (n * second + snapshot**2) / (n + 1)
        columns = [*columns, snapshot - mean][-rank:]
    deviations = np.stack(columns)
    diagonal = second - mean**2
    return 0.5 * scale * (np.diag(diagonal) + deviations.T @ deviations / (rank - 1))


@pytest.mark.parametrize("dtype, precision", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("snapshots, rank", [(15, 14), (15, 20), (2, 1), (2, 5)])
def test_with_enough_rank_the_covariance_is_the_snapshots_own(snapshots, rank, dtype, precision):
    posterior, w = run(dtype, snapshots=snapshots, rank=rank)
    assert len(w) == snapshots
    truth = snapshot_covariance(w)
    np.testing.assert_allclose(vector_of(posterior.mean).double(), w.mean(0), rtol=precision, atol=precision)
    np.testing.assert_allclose(
        stated_covariance(posterior), truth, rtol=precision, atol=precision * np.abs(truth).max()
    )


@pytest.mark.parametrize("rank", [2, 5, 13])
def test_with_less_rank_it_is_the_published_running_algorithm(rank):
    posterior, w = run(snapshots=15, rank=rank)
    assert posterior.rank == rank
    truth = published_covariance(w, rank)
    np.testing.assert_allclose(vector_of(posterior.mean), w.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stated_covariance(posterior), truth, rtol=1e-9, atol=1e-12 * np.abs(truth).max())


@pytest.mark.parametrize("rank", [4, 14])
def test_scale_multiplies_the_covariance(rank):
    plain, _ = run(snapshots=15, rank=rank)
    doubled, _ = run(snapshots=15, rank=rank, scale=2.5)
    np.testing.assert_allclose(stated_covariance(doubled), 2.5 * stated_covariance(plain), rtol=1e-12)
    assert torch.equal(vector_of(doubled.mean), vector_of(plain.mean))


def test_draws_have_that_covariance_also_between_layers():
    posterior, w = run(snapshots=15, rank=14)
    truth = torch.as_tensor(snapshot_covariance(w))
    first, second = slice(0, 9), slice(9, 13)
    sd = truth.diagonal().sqrt()
    correlation = truth / (sd[:, None] * sd)
    assert correlation[first, second].abs().max() > 0.2  # noise drawn per tensor would leave none
    draws = vector_of(posterior.sample(200_000, seed=1), 1)
    assert_moments(draws, torch.as_tensor(w.mean(0)), truth)


def test_every_mode_of_a_vectorised_run_has_its_own_snapshots_covariance():
    settings = {"snapshots": 6, "rank": 3, "base": pl.MAP(optimizer="sgd", learning_rate=0.1)}
    model = pl.BayesianModel(two_layers(), pl.likelihoods.Normal(scale=0.3))
    options = {"steps": 40, "batch_size": 8, "num_modes": 4, "progress": False, "compile": False}
    together = pl.fit(model, data(), pl.SWAG(**settings), vectorise=True, **options)
    SNAPSHOTS.clear()
    pl.fit(model, data(), Recording(**settings), vectorise=False, **options)
    snapshots = np.stack(SNAPSHOTS).reshape(6, 4, -1)
    for mode, component in enumerate(together.components):
        truth = published_covariance(snapshots[:, mode], 3)
        np.testing.assert_allclose(stated_covariance(component), truth, rtol=1e-6, atol=1e-9 * np.abs(truth).max())


def test_snapshots_are_spread_evenly_after_start_and_end_with_the_run():
    method = pl.SWAG(rank=5, start=0.5, snapshots=10)
    kept = list(method.kept_steps(100))
    assert len(kept) == 10 and kept[-1] == 99 and min(kept) >= 50
    assert set(np.diff(kept)) == {5}
    assert len(set(pl.SWAG(start=0.0, snapshots=7).kept_steps(30))) == 7


def test_snapshots_of_a_constant_rate_are_those_of_plain_sgd():
    """The same steps run as MAP with SWAG's own schedule pass through the same weights."""
    _, w = run(snapshots=15, rank=14, start=0.5)
    model = pl.BayesianModel(two_layers(), pl.likelihoods.Normal(scale=0.3))
    resolved = pl.SWAG(snapshots=15, rank=14, start=0.5, base=pl.MAP(optimizer="sgd", learning_rate=0.1)).resolved(
        model, 60
    )
    last = pl.fit(model, data(), resolved.base, steps=60, batch_size=8, progress=False, compile=False)
    np.testing.assert_allclose(w[-1], vector_of(last.mean), rtol=1e-12)


def test_the_rate_while_snapshots_are_taken_is_the_one_given():
    model = pl.BayesianModel(two_layers(), pl.likelihoods.Normal(scale=0.3))
    resolved = pl.SWAG(swag_learning_rate=0.01, start=0.6, base=pl.MAP(optimizer="sgd", learning_rate=0.1)).resolved(
        model, 100
    )
    rates = [0.1 * resolved.base.schedule(torch.tensor(p)).item() for p in (0.0, 0.29, 0.55, 0.6, 0.99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01])


def test_it_holds_rank_plus_two_copies_of_the_weights_beside_the_training_state():
    model = pl.BayesianModel(nn.Linear(500, 20), pl.likelihoods.Normal())
    params = model.init()
    copy = num_bytes(params)
    base = pl.MAP(optimizer="sgd")
    method = dataclasses.replace(pl.SWAG(rank=7, snapshots=30, base=base))
    training = num_bytes(base.init(model, params))
    beside = num_bytes(method.init(model, params)) - training
    record = num_bytes(method.keep(model, method.init(model, params)))
    held = beside + method.capacity(num_steps=1000) * record
    assert record == copy
    assert held <= (7 + 2) * copy + 64  # the count is a scalar
    # And the answer itself: rank factors, a mean, a variance.
    state = method.init(model, params)
    rows = [method.keep(model, state) for _ in range(7)]
    stacked = {k: torch.stack([r[k] for r in rows]) for k in params}
    assert num_bytes(method.posterior(model, state, stacked).tensors) <= (7 + 2) * copy


def test_too_few_steps_for_the_snapshots_is_an_error():
    model = pl.BayesianModel(two_layers(), pl.likelihoods.Normal())
    with pytest.raises(ValueError, match="run longer"):
        pl.fit(model, data(), pl.SWAG(snapshots=30), steps=40, progress=False)


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"start": 1.0}, {"snapshots": 1}, {"scale": -1.0}, {"base": None}])
def test_wrong_settings_are_refused_when_they_are_given(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pl.SWAG(**wrong)


def test_multiswag_is_an_equal_mixture_of_swags():
    model = pl.BayesianModel(two_layers(), pl.likelihoods.Normal(scale=0.3))
    method = pl.MultiSWAG(modes=3, base=pl.SWAG(rank=2, snapshots=5))
    posterior = pl.fit(model, data(), method, steps=40, batch_size=8, progress=False)
    assert [type(c).__name__ for c in posterior.components] == ["LowRank"] * 3
    assert posterior.weights.tolist() == pytest.approx([1 / 3] * 3)
    means = [vector_of(c.mean) for c in posterior.components]
    assert all(not torch.allclose(a, b) for i, a in enumerate(means) for b in means[:i])
    # Its covariance is that of the mixture: within plus between modes.
    centre = sum(means) / 3
    within = sum(torch.as_tensor(stated_covariance(c)) for c in posterior.components) / 3
    between = sum(torch.outer(m - centre, m - centre) for m in means) / 3
    draws = vector_of(posterior.sample(50_000, seed=0), 1) - centre
    error = torch.stack([(draws * draws[:, [j]]).std(0) for j in range(draws.shape[1])]) / math.sqrt(50_000)
    assert ((draws.T @ draws / 50_000 - within - between).abs() / error).max() < 5
