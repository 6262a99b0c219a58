"""MAP finds the closed-form mode of conjugate regression, however the data are cut into batches."""

import dataclasses
import math

import pytest
import torch
from tests.oracles import linear_regression, vector_of
from torch import nn

import plausible as pl
from plausible.weights.rng import Keys, run_key

QUIET = {"progress": False, "compile": False}
RATES = {"sgd": 0.02, "adam": 0.05, "adamw": 0.05}


def problem():
    """Data that scatter little, so that a decaying rate averages the minibatches' noise away, and a prior that pulls.

    The pull moves the mode by more than a hundred times the tolerance: a prior counted once per batch, or divided by
    the wrong N, could not pass.
    """
    base = linear_regression(n=34, inputs=2, noise=1.0, scatter=0.01, seed=0)
    wide = dataclasses.replace(base, prior_covariance=4 * base.prior_covariance)
    free = torch.linalg.lstsq(wide.design, wide.y).solution
    assert (wide.mean - free).abs().max() > 0.01
    return wide


def decaying(progress):
    return torch.exp(-7 * progress)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("batch_size, steps", [(1, 3400), (7, 2500), (34, 1000)])
def test_the_mode_of_conjugate_regression_is_found_for_every_batch_size(optimizer, batch_size, steps):
    truth = problem()
    method = pl.MAP(optimizer=optimizer, learning_rate=RATES[optimizer], schedule=decaying)
    posterior = pl.fit(truth.model(), truth.data(), method, steps=steps, batch_size=batch_size, seed=1, **QUIET)
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_it_is_found_in_float32_too(optimizer):
    truth = problem()
    method = pl.MAP(optimizer=optimizer, learning_rate=RATES[optimizer], schedule=decaying)
    model = truth.model(torch.float32)
    posterior = pl.fit(model, truth.data(torch.float32), method, steps=1000, batch_size=34, seed=1, **QUIET)
    assert all(w.dtype == torch.float32 for w in posterior.mean.values())
    assert (vector_of(posterior.mean).double() - truth.mean).abs().max() < 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_with_all_data_in_a_batch_it_is_found_to_rounding(optimizer):
    truth = linear_regression(n=20, inputs=3, noise=0.5, seed=2)
    method = pl.MAP(optimizer=optimizer, learning_rate=RATES[optimizer], schedule="cosine")
    posterior = pl.fit(truth.model(), truth.data(), method, steps=1500, batch_size=20, **QUIET)
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 1e-7


def weighted_problem():
    truth = problem()
    rng = torch.Generator().manual_seed(5)
    weights = 0.2 + 3 * torch.rand(34, generator=rng, dtype=torch.float64)
    # Two laws in one data set, so that the weights decide between them.
    y = truth.y.clone()
    y[::2] += 0.05 * truth.x[::2, 0]
    return dataclasses.replace(truth, y=y, weights=weights)


@pytest.mark.parametrize("batch_size, steps", [(1, 4000), (7, 3000), (34, 1000)])
def test_weights_of_examples_multiply_their_log_likelihoods(batch_size, steps):
    truth = weighted_problem()
    unweighted = dataclasses.replace(truth, weights=torch.ones_like(truth.weights))
    assert (truth.mean - unweighted.mean).abs().max() > 0.002
    method = pl.MAP(optimizer="sgd", learning_rate=0.01, schedule=decaying)
    data = (*truth.data(), truth.weights)
    posterior = pl.fit(truth.model(), data, method, steps=steps, batch_size=batch_size, seed=1, **QUIET)
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 2e-4


def test_weights_count_the_same_in_a_loader():
    truth = weighted_problem()
    data = torch.utils.data.TensorDataset(*truth.data(), truth.weights)
    loader = torch.utils.data.DataLoader(data, batch_size=7, shuffle=True)
    method = pl.MAP(optimizer="sgd", learning_rate=0.01, schedule=decaying)
    total = truth.weights.sum().item()
    posterior = pl.fit(truth.model(), loader, method, steps=3000, num_data=total, seed=1, **QUIET)
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 2e-4


def test_weights_and_repeated_examples_are_the_same_thing():
    truth = linear_regression(n=9, inputs=2, seed=4)
    x, y = truth.data()
    counts = torch.tensor([1, 3, 0, 2, 1, 1, 4, 1, 2])
    method = pl.MAP(optimizer="adam", learning_rate=0.05)
    options = {"steps": 1500, **QUIET}
    weighted = pl.fit(truth.model(), (x, y, counts.double()), method, batch_size=9, **options)
    repeated = (x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    plain = pl.fit(truth.model(), repeated, method, batch_size=15, **options)
    torch.testing.assert_close(vector_of(weighted.mean), vector_of(plain.mean), rtol=1e-7, atol=1e-7)


def test_a_noise_scale_to_be_learned_is_found_with_the_weights():
    """ "learn" is flat on log σ, so the mode maximises N(y; Aw, σ²) N(w) in (w, log σ): solved here by fixed points."""
    truth = linear_regression(n=25, inputs=2, noise=0.4, seed=6)
    a, y, log_scale = truth.design, truth.y, 0.0
    for _ in range(500):
        w = torch.linalg.solve(a.T @ a / math.exp(2 * log_scale) + torch.eye(3), a.T @ y / math.exp(2 * log_scale))
        log_scale = 0.5 * math.log(((y - a @ w) ** 2).mean().item())
    model = truth.model(likelihood=pl.likelihoods.Normal(scale="learn"))
    posterior = pl.fit(model, truth.data(), pl.MAP(learning_rate=0.05), steps=2500, batch_size=25, **QUIET)
    found = posterior.mean
    assert found["likelihood.scale"].item() == pytest.approx(log_scale, abs=1e-5)
    assert model.constrain(found)["likelihood.scale"].item() == pytest.approx(math.exp(log_scale), rel=1e-5)
    assert (torch.cat([found["weight"].flatten(), found["bias"]]) - w).abs().max() < 1e-5


def test_a_flat_prior_is_least_squares():
    truth = linear_regression(n=20, inputs=3, noise=0.5, seed=2)
    model = truth.model(prior=pl.priors.Flat())
    posterior = pl.fit(model, truth.data(), pl.MAP(learning_rate=0.05), steps=2000, batch_size=20, **QUIET)
    least_squares = torch.linalg.lstsq(truth.design, truth.y).solution
    assert (vector_of(posterior.mean) - least_squares).abs().max() < 1e-5


def test_the_posterior_of_one_half_as_prior_for_the_other_is_all_data_at_once():
    truth = linear_regression(n=30, inputs=3, noise=0.5, seed=8)
    first, second = slice(0, 13), slice(13, 30)
    half = truth.part(first)
    yesterday = pl.posteriors.Full(truth.model(), truth.params(half.mean), half.covariance)
    model = truth.model(prior=yesterday)
    x, y = truth.data()
    posterior = pl.fit(model, (x[second], y[second]), pl.MAP(learning_rate=0.05), steps=2000, batch_size=17, **QUIET)
    torch.testing.assert_close(truth.part(second, half).mean, truth.mean)  # the oracle agrees with itself
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 1e-5


def test_temperature_leaves_the_mode_of_weights_where_it_is():
    truth = linear_regression(n=20, inputs=2, seed=1)
    cold = pl.BayesianModel(nn.Linear(2, 1).double(), pl.likelihoods.Normal(scale=0.5), temperature=0.25)
    posterior = pl.fit(cold, truth.data(), pl.MAP(learning_rate=0.05), steps=2000, batch_size=20, **QUIET)
    assert (vector_of(posterior.mean) - truth.mean).abs().max() < 1e-5


# --- the optimisers are those that everybody knows ---


def by_torch(optimizer, truth, steps):
    """The same run with torch's own optimiser on −log joint / N, written out by hand."""
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimiser = optimizer([w])
    for _ in range(steps):
        optimiser.zero_grad()
        residual = truth.y - truth.design @ w
        loss = (residual**2).sum() / (2 * truth.noise**2) + (w**2).sum() / 2
        (loss / len(truth.y)).backward()
        optimiser.step()
    return w.detach()


def test_sgd_and_adam_are_torchs_step_for_step():
    truth = linear_regression(n=20, inputs=2, seed=1)
    pairs = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    }
    for name, make in pairs.items():
        method = pl.MAP(optimizer=name, learning_rate=0.02, schedule="constant")
        ours = pl.fit(truth.model(), truth.data(), method, steps=25, batch_size=20, **QUIET)
        torch.testing.assert_close(vector_of(ours.mean), by_torch(make, truth, 25), rtol=1e-6, atol=1e-7)


def test_clipping_shortens_the_step_to_the_norm():
    truth = linear_regression(n=20, inputs=2, seed=1)
    method = pl.MAP(optimizer="sgd", learning_rate=1.0, momentum=0.0, schedule="constant", clip_norm=1e-3)
    posterior = pl.fit(truth.model(), truth.data(), method, steps=1, batch_size=20, **QUIET)
    assert vector_of(posterior.mean).norm().item() == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [{"optimizer": "lion"}, {"learning_rate": 0.0}, {"momentum": 1.0}, {"clip_norm": -1.0}, {"schedule": "spiral"}],
)
def test_wrong_settings_are_refused_when_they_are_given(wrong):
    with pytest.raises((ValueError, pl.NotSupported), match=next(iter(wrong))):
        pl.MAP(**wrong)


def test_a_hierarchical_scale_without_a_highest_point_is_refused():
    model = pl.BayesianModel(
        nn.Linear(2, 1), pl.likelihoods.Normal(), prior=pl.priors.Normal(scale=pl.hyperpriors.HalfCauchy())
    )
    with pytest.raises(pl.NotSupported, match="HMC"):
        pl.fit(model, (torch.zeros(3, 2), torch.zeros(3, 1)), pl.MAP(), steps=1, progress=False)


def test_the_fused_update_leaves_the_same_state_as_the_written_one(monkeypatch):
    """A run may go on compiled or vectorised from a state that the fused kernel left, so its moments must be the same."""
    from plausible.inference.point import map as module

    problem = linear_regression(seed=3)
    target = problem.model().bound(num_data=float(len(problem.y)), num_steps=10)
    states = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(module, "can_fuse", lambda weights: False)
        state = pl.MAP().init(target, target.init())
        for step in range(5):
            state, _ = pl.MAP().step(target, state, problem.data(), Keys(run_key(0), torch.tensor(step)))
        states.append(state)
    for part in ("params", "first", "second"):
        for k in states[0][part]:
            torch.testing.assert_close(states[0][part][k], states[1][part][k], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_weight_that_the_data_never_move_goes_to_the_priors_mean(optimizer):
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.0])
    network = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(network.weight, 0.5)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(), prior=pl.priors.Normal(scale=0.2))
    away = []
    for steps in (1, 10, 300):
        method = pl.MAP(optimizer=optimizer, learning_rate=RATES[optimizer], schedule="constant")
        found = pl.fit(model, (x, x[:, :1]), method, steps=steps, batch_size=50, progress=False, device="cpu")
        away.append(abs(float(found.params["weight"][0, 1])))
    assert away[0] < 0.5 and away[1] < away[0] and away[2] < 0.05
