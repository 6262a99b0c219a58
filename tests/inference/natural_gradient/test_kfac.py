"""K-FAC against exact Bayes, Laplace's factors at the same weights, and what breaks other code."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.inference.natural_gradient.kronecker_cases import (
    dense_covariance,
    exact_bayes,
    fit,
    of_each_output,
    on_a_plateau,
    several_outputs,
)
from torch import nn

import plausible as pl
from plausible.weights import tree

NEWTON = pl.KFAC(learning_rate=1.0, momentum=0.0, damping=0.0, schedule="constant")
STILL = pl.KFAC(learning_rate=1e-14, damping=0.0, curvature_decay=0.999, update_every=1)


def classifier(dtype=torch.float64):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(56, 5, generator=rng).to(dtype), torch.randint(3, (56,), generator=rng)
    return pl.BayesianModel(network, pl.likelihoods.Categorical()), data


@pytest.mark.parametrize("bias_prior", [None, pl.priors.Flat()], ids=["normal", "flat"])
def test_one_whole_step_on_a_conjugate_model_is_exact_bayes(bias_prior):
    model, x, y = several_outputs(bias_prior)
    posterior = fit(model, (x, y), NEWTON, steps=1 if bias_prior is None else 40)
    mean, covariance = exact_bayes(x, y, 1 / 16 if bias_prior is None else 0.0)
    found, spread = of_each_output(posterior)
    torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-9)
    # Outputs are independent of one another.
    torch.testing.assert_close(spread, torch.block_diag(covariance, covariance), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["ggn", "empirical-fisher"])
def test_factors_at_the_same_weights_are_those_of_laplace(kind):
    model, data = classifier()
    mine = fit(model, data, pl.KFAC(learning_rate=1e-14, curvature=kind), steps=1)
    laplace = fit(model, data, pl.Laplace(curvature=kind), init="network", epochs=0)
    torch.testing.assert_close(dense_covariance(mine), dense_covariance(laplace), rtol=1e-8, atol=1e-12)


def test_factors_of_a_convolution_are_those_of_laplace():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)).double()
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(12, 2, 5, 5, generator=rng).double(), torch.randn(12, 2, generator=rng).double()
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.7), prior=pl.priors.Normal(scale=0.5))
    mine = fit(model, data, STILL, steps=1)
    laplace = fit(model, data, pl.Laplace(), init="network", epochs=0)
    torch.testing.assert_close(dense_covariance(mine), dense_covariance(laplace), rtol=1e-8, atol=1e-12)


def test_the_average_over_an_epoch_of_batches_is_the_curvature_of_all_data():
    model, data = classifier()
    batches = fit(model, data, STILL, steps=7, batch_size=8)
    whole = fit(model, data, STILL, steps=1)
    torch.testing.assert_close(dense_covariance(batches), dense_covariance(whole), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "method", [STILL, replace(STILL, curvature="empirical-fisher")], ids=["ggn", "empirical-fisher"]
)
def test_batches_of_light_examples_count_for_less_and_those_without_a_say_for_nothing(method, caplog):
    model, (x, y) = classifier()
    weights = torch.rand(56, generator=torch.Generator().manual_seed(4)).double() * (torch.arange(56) % 5 == 0)
    batches = fit(model, (x, y, weights), method, steps=28, batch_size=2)
    laplace = fit(model, (x, y, weights), pl.Laplace(curvature=method.curvature), init="network", epochs=0)
    torch.testing.assert_close(dense_covariance(batches), dense_covariance(laplace), rtol=1e-8, atol=1e-12)
    assert not caplog.records


def test_simulated_targets_give_the_same_factors_in_expectation():
    model, data = classifier()
    simulated = fit(
        model,
        data,
        pl.KFAC(learning_rate=1e-14, curvature="mc-fisher", curvature_decay=0.9999, update_every=1),
        steps=150,
    )
    whole = fit(model, data, STILL, steps=1)
    # 150 looks at 56 examples; squares of gradients have about three times the spread of a normal's.
    precisions = [torch.linalg.inv(dense_covariance(p)).diagonal() for p in (simulated, whole)]
    torch.testing.assert_close(*precisions, rtol=4 * 3 / math.sqrt(150 * 56), atol=0.0)


def test_a_run_ends_at_the_highest_point():
    """Of softmax regression, which has one: where a quasi-Newton method by somebody else ends."""
    _, (x, y) = classifier()
    torch.manual_seed(3)
    model = pl.BayesianModel(nn.Linear(5, 3).double(), pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=2.0))
    posterior = fit(
        model, (x, y), pl.KFAC(learning_rate=0.7, momentum=0.0, damping=0.0, schedule="constant"), steps=150
    )

    def downhill(at):
        w = {"weight": torch.tensor(at[:15].reshape(3, 5)), "bias": torch.tensor(at[15:])}
        value, slope = model.slope(w, (x, y), num_data=56)
        return -float(value), -torch.cat([slope["weight"].flatten(), slope["bias"]]).numpy()

    best = minimize(downhill, np.zeros(18), jac=True, method="BFGS", options={"gtol": 1e-9})
    found = torch.cat([posterior.mean["weight"].flatten(), posterior.mean["bias"]]).numpy()
    np.testing.assert_allclose(found, best.x, atol=1e-6)


def test_predictions_linearise_the_network_as_laplace_does():
    model, data = classifier(torch.float32)
    posterior = fit(model, data, pl.KFAC(), steps=20)
    predictive = posterior.predict(data[0][:4])
    assert torch.equal(predictive.probs, posterior.predict(data[0][:4], linearised=True).probs)


def test_an_embedding_has_a_diagonal_for_its_rows_and_those_never_seen_keep_the_prior():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(50_000, 3), nn.Flatten(), nn.Linear(6, 2))
    data = torch.randint(100, (40, 2), generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    model = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=0.5))
    posterior = fit(model, data, pl.NoisyKFAC(), steps=3)
    block = next(b for b in posterior.blocks if b.weight == "0.weight")
    assert block.left.shape == (1, 50_000)
    spread = (posterior.sample(20, seed=0)["0.weight"] - posterior.mean["0.weight"])[:, 100:].std()
    torch.testing.assert_close(spread, torch.tensor(0.5), rtol=4 / math.sqrt(2 * 20 * 49_900 * 3), atol=0.0)


def test_a_step_changes_predictions_by_no_more_than_is_trusted():
    model, x, y = several_outputs()
    start = {k: v.clone() for k, v in model.start.items()}
    short = fit(model, (x, y), pl.KFAC(learning_rate=1.0, momentum=0.0, damping=0.0, trust=0.01), steps=1)
    away = {k: short.mean[k] - start[k] for k in start}
    moved = x @ away["weight"].T + away["bias"]
    prior = (away["weight"] / 1.5).square().sum() + (away["bias"] / 4).square().sum()
    nats = 0.5 * (moved.square().sum() / 0.25 + prior)  # of all 30 examples, for a normal likelihood exactly
    torch.testing.assert_close(nats, torch.tensor(0.01 * 30).double(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("temperature", [0.01, 4.0])
def test_a_temperature_moves_no_step_towards_the_highest_point(temperature):
    model, data = classifier()
    warm = model.bound(temperature=temperature)
    expected, found = (fit(m, data, pl.KFAC(), steps=12, batch_size=28) for m in (model, warm))
    for k, w in expected.mean.items():
        torch.testing.assert_close(found.mean[k], w, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("steps", "update_every"), [(100, 10), (1000, 10), (1000, 100)])
def test_a_deep_network_without_norms_leaves_its_plateau(steps, update_every):
    """Where curvature grows by orders of magnitude between two looks at it."""
    network, (x, y) = on_a_plateau()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=2.4))
    posterior = fit(model, (x, y), pl.KFAC(update_every=update_every), steps=steps, batch_size=128)
    guess = pl.posteriors.Delta(posterior.model, posterior.mean).predict(x).probs.argmax(1)
    assert (guess == y).float().mean() > 0.95


# --- what breaks other code ---


def test_dead_units_keep_the_prior():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        network[0].bias.copy_(torch.tensor([1.0, -1e4, -1e4, 1.0]))
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(20, 2, generator=rng), torch.randn(20, 1, generator=rng)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.5), prior=pl.priors.Normal(scale=2.0))
    posterior = fit(model, data, pl.KFAC(learning_rate=0.1, trust=0.01), steps=20)
    assert all(t.isfinite().all() for _, t in tree.leaves(posterior.tensors))
    spread = posterior.sample(4000, seed=0)["0.weight"].std(0)
    torch.testing.assert_close(spread[1:3], torch.full((2, 2), 2.0), rtol=4 / math.sqrt(2 * 4000), atol=0.0)
    assert (spread[0] < 1.0).all()


def test_dead_units_without_a_prior_are_a_named_error():
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        network[0].bias.fill_(-1e4)
    data = torch.zeros(20, 2), torch.zeros(20, 1)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.5), prior=pl.priors.Flat())
    with pytest.raises(ValueError, match="weight is singular"):
        fit(model, data, pl.KFAC(), steps=3)


def test_a_batch_that_is_not_a_number_stops_the_run_within_a_step():
    model, (x, y) = classifier(torch.float32)
    seen = []

    def spoil(inputs):
        seen.append(len(inputs))
        return inputs * float("nan") if len(seen) == 5 else inputs

    with pytest.raises(FloatingPointError, match="stopped being finite at step 4"):
        fit(model, (x, y), pl.KFAC(update_every=2), steps=20, augment=spoil)


class Overflowing(pl.likelihoods.Normal):
    """A likelihood whose value is finite where its curvature is not."""

    def log_prob(self, outputs, y):
        return -(outputs - y).abs().pow(1.5).squeeze(-1)


def test_a_curvature_that_is_not_a_number_is_no_silent_posterior():
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.zero_()
    model = pl.BayesianModel(network, Overflowing(scale=1.0))
    with pytest.raises(FloatingPointError, match="curvature of 2 of the 2 batches"):
        fit(model, (torch.ones(4, 1), torch.zeros(4, 1)), pl.KFAC(learning_rate=1e-14), steps=2)


def test_factors_too_large_for_the_memory_are_named_before_they_are_made(monkeypatch):
    model, data = classifier()
    monkeypatch.setattr("plausible.inference.natural_gradient.kronecker_method.free_bytes", lambda device: 1000)
    with pytest.raises(
        ValueError, match=r"need \d,\d+ bytes here, and 1,000 are free; the widest is 8 wide, of 2\.weight"
    ):
        fit(model, data, pl.KFAC(), steps=2)


@pytest.mark.parametrize(
    "prior",
    [
        pl.priors.Laplace(),
        pl.priors.Normal(scale=pl.hyperpriors.LogNormal()),
        pl.priors.Normal(scale=pl.hyperpriors.HalfCauchy()),
    ],
)
def test_priors_other_than_a_normal_of_known_scale_are_refused(prior):
    model, data = classifier()
    with pytest.raises(pl.NotSupported, match=r"pl\.priors\.Normal.*pl\.NaturalGradientVI"):
        fit(model.with_prior(prior), data, pl.KFAC(), steps=2)


@pytest.mark.parametrize("method", [pl.KFAC(), pl.NoisyKFAC()])
@pytest.mark.parametrize("where", ["weight", "bias"])
def test_prior_precisions_that_differ_between_outputs_are_refused(method, where):
    """No Kronecker factor can say them; those that differ between inputs are exact."""
    model, data = classifier()
    deviations = {k: torch.ones_like(v) for k, v in model.start.items()}
    deviations["0.weight"][:, 1] = 0.1
    zeros = {k: torch.zeros_like(v) for k, v in model.start.items()}
    alike = pl.posteriors.Diagonal(model, zeros, deviations)
    assert pl.fit(model.with_prior(alike), data, method, steps=3, progress=False).sample(2) is not None
    deviations[f"0.{where}"][2] = 0.3
    unlike = pl.posteriors.Diagonal(model, zeros, deviations)
    with pytest.raises(pl.NotSupported, match=rf"precisions of 0\.{where} differ between the outputs.*pl\.VOGN"):
        pl.fit(model.with_prior(unlike), data, method, steps=3, progress=False)


@pytest.mark.parametrize("method", [pl.KFAC(update_every=1), pl.NoisyKFAC(update_every=1)])
def test_a_first_batch_without_a_say_breaks_nothing(method):
    model, x, y = several_outputs(None)
    say = torch.ones(len(x), dtype=torch.float64)
    say[:8] = 0.0
    parts = torch.utils.data.TensorDataset(x, y, say)
    loader = torch.utils.data.DataLoader(parts, batch_size=8)  # in this order
    found = pl.fit(model, loader, method, num_data=float(say.sum()), epochs=60, progress=False)
    mean, covariance = exact_bayes(x[8:], y[8:], 1 / 16)
    _, spread = of_each_output(found)
    expected = torch.block_diag(covariance, covariance).diagonal()
    # Later looks count for more, and are of 6 to 8 of the 22 examples: they differ by a third. It was an error before.
    torch.testing.assert_close(spread.diagonal(), expected, rtol=0.35, atol=0.0)


def test_a_density_without_a_network_is_refused_by_name():
    density = pl.LogDensity(lambda p: -p["a"].square().sum(), {"a": torch.zeros(2)})
    with pytest.raises(pl.NotSupported, match="ADVI"):
        pl.fit(density, None, pl.KFAC(), steps=2, progress=False)


def test_no_steps_are_no_curvature():
    model, data = classifier()
    with pytest.raises(ValueError, match="pl.Laplace"):
        fit(model, data, pl.KFAC(), epochs=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("learning_rate", 0.0), ("momentum", 1.0), ("curvature_decay", 1.0), ("damping", -1.0), ("update_every", 0),
     ("curvature", "hessian"), ("trust", 0.0)],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_with_its_value(setting, value):
    with pytest.raises(ValueError, match=f"{setting} must .*{value}"):
        pl.KFAC(**{setting: value})


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [
        (1, 4, [0, 1, 2, 3]),
        (3, 11, [0, 1, 2, 3, 6, 9, 10]),
        (10, 32, [*range(10), 10, 20, 30, 31]),
        (40, 130, [*range(10), 10, 20, 30, 40, 80, 120, 129]),
    ],
)
def test_looks_at_the_curvature_are_closer_at_first(every, steps, expected):
    assert list(pl.KFAC(update_every=every).probed_steps(steps)) == expected
