"""Predictions with the network linearised at the mean, against dense Jacobians and closed forms."""

import pytest
import torch
from tests.core.dense_gaussians import SHAPES, a_gaussian, a_model, dense_jacobian, randn, tanh_network
from tests.core.test_prediction import LiveBytes
from tests.oracles import assert_moments, vector_of
from torch import nn

import plausible as pl
from plausible import posteriors
from plausible.core.linearised import output_moments
from plausible.core.posteriors.kronecker import Block


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_the_mean_and_the_jacobian_times_the_posteriors_own_draws(shape):
    model, x = a_model(), randn(7, 3, seed=1)
    posterior, _ = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    deviations = vector_of(posterior.sample(9, seed=4), 1) - vector_of(posterior.mean)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    predictive = posterior.predict(x, num_samples=9, seed=4, linearised=True)
    torch.testing.assert_close(predictive.outputs, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(posterior.predict(x, num_samples=9, seed=4, linearised=True).outputs, predictive.outputs)
    assert not torch.equal(posterior.predict(x, num_samples=9, seed=5, linearised=True).outputs, predictive.outputs)
    assert not torch.allclose(posterior.predict(x, num_samples=9, seed=4).outputs, predictive.outputs, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_is_linear_in_its_weights_predicts_the_same_either_way(shape, dtype):
    model = a_model(pl.likelihoods.Categorical(), dtype, nn.Linear(3, 4).to(dtype))
    posterior, _ = a_gaussian(model, shape)
    x = randn(20, 3, seed=1, dtype=dtype)
    sampled, linear = (posterior.predict(x, linearised=way) for way in (False, True))
    torch.testing.assert_close(linear.outputs, sampled.outputs, rtol=1e-5, atol=1e-5)
    assert linear.outputs.dtype == linear.probs.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES)
def test_linearised_outputs_have_the_moments_of_the_dense_formula(shape):
    model, x = a_model(), randn(3, 3, seed=1)
    posterior, covariance = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    flat = jacobian.reshape(6, -1)
    predictive = posterior.predict(x, num_samples=50_000, seed=2, linearised=True)
    assert_moments(predictive.outputs.flatten(1), value.flatten(), flat @ covariance @ flat.T)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_variance_of_outputs_is_exact(shape):
    model, x = a_model(), randn(5, 3, seed=1)
    posterior, covariance = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    expected = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance, jacobian)
    for memory in (1, 20_000, 10**8):
        mean, variance = output_moments(posterior, x, memory)
        torch.testing.assert_close(mean, value, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(variance, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("memory", [40_000, 100_000, 10**6])
@pytest.mark.parametrize("shape", [*SHAPES, "mixture"])
def test_blocks_change_nothing_but_memory(shape, memory):
    model, x = a_model(), randn(40, 3, seed=1)
    if shape == "mixture":
        posterior = pl.mixture([a_gaussian(model, "Full")[0], a_gaussian(model, "Diagonal")[0]], weights=[0.25, 0.75])
    else:
        posterior = a_gaussian(model, shape)[0]
    whole = posterior.predict(x, num_samples=16, seed=1, linearised=True)
    blocks = posterior.predict(x, num_samples=16, seed=1, linearised=True, memory=memory)
    torch.testing.assert_close(blocks.outputs, whole.outputs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["Diagonal", "Kronecker"])
@pytest.mark.parametrize("link", [None, "probit"])
def test_a_linearised_prediction_never_holds_more_than_its_budget(shape, link):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior, x = a_gaussian_of_a_large_network(model, shape), randn(60 if link else 2000, 3, dtype=torch.float32)
    posterior.predict(x[:1], num_samples=1, linearised=True)  # torch makes tables when it first differentiates forward
    memory = 16 * 2**20
    with LiveBytes() as live:
        posterior.predict(x, num_samples=20, memory=memory, linearised=True, link=link)
    assert live.peak <= memory


def a_gaussian_of_a_large_network(model, shape):
    if shape == "Diagonal":
        return posteriors.Diagonal(model, model.init(), {k: torch.full_like(w, 0.1) for k, w in model.start.items()})
    blocks = []
    for k in ("0", "2", "4"):
        rows, columns = model.start[f"{k}.weight"].shape
        eye = lambda n: torch.eye(n)[None]  # noqa: E731
        scale = torch.full((1, rows, columns + 1), 0.1)
        blocks.append(Block(f"{k}.weight", f"{k}.bias", eye(rows), eye(columns + 1), scale))
    return posteriors.Kronecker(model, model.init(), blocks)


# --- which way a posterior predicts ---


def test_a_mixture_is_linearised_at_each_members_own_mean():
    model, x = a_model(), randn(4, 3, seed=1)
    first, _ = a_gaussian(model, "Full")
    second = posteriors.Diagonal(model, model.init(5), {k: torch.full_like(w, 0.2) for k, w in model.start.items()})
    point = posteriors.Delta(model, model.init(6))
    mixture = pl.mixture([first, second, point])
    predictive = mixture.predict(x, num_samples=9, seed=2, linearised=True)
    assert torch.bincount(predictive.strata).tolist() == [3, 3, 1]
    for own, stratum in enumerate(mixture.strata(9, seed=2)[:2]):
        value, jacobian = dense_jacobian(model, stratum.posterior.mean, x)
        deviations = vector_of(stratum.posterior.draw(stratum.indices, stratum.seed), 1)
        deviations = deviations - vector_of(stratum.posterior.mean)
        expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
        torch.testing.assert_close(predictive.outputs[predictive.strata == own], expected, rtol=1e-10, atol=1e-10)
    at_point, _ = dense_jacobian(model, point.mean, x)
    torch.testing.assert_close(predictive.outputs[-1], at_point, rtol=1e-10, atol=1e-10)


def test_none_means_the_way_of_the_posterior_or_of_each_member(tmp_path):
    model, x = a_model(), randn(4, 3, seed=1)
    linear, sampled = a_gaussian(model, "Diagonal")[0], a_gaussian(model, "Diagonal", seed=3)[0]
    linear.linearised_by_default = True
    torch.testing.assert_close(linear.predict(x).outputs, linear.predict(x, linearised=True).outputs)
    torch.testing.assert_close(sampled.predict(x).outputs, sampled.predict(x, linearised=False).outputs)
    assert not torch.allclose(linear.predict(x, linearised=False).outputs, linear.predict(x).outputs)
    mixture = pl.mixture([linear, sampled])
    own = mixture.predict(x, num_samples=8).outputs
    assert torch.equal(own[:4], mixture.predict(x, num_samples=8, linearised=True).outputs[:4])
    assert torch.equal(own[4:], mixture.predict(x, num_samples=8, linearised=False).outputs[4:])
    mixture.save(tmp_path / "a")
    for other in (pl.load(tmp_path / "a", tanh_network()), mixture.to("cpu")):
        assert torch.equal(other.predict(x, num_samples=8).outputs, own)


@pytest.mark.parametrize("names", [["2.weight", "2.bias"], ["0.weight", "likelihood.scale"], ["likelihood.scale"]])
def test_weights_that_do_not_vary_keep_their_mean(names):
    model, x = a_model(pl.likelihoods.Normal(scale="learn")), randn(4, 3, seed=1)
    mean = {k: w + 0.1 for k, w in model.init().items()}
    posterior = posteriors.Diagonal(model, mean, {k: torch.full_like(mean[k], 0.3) for k in names})
    value, jacobian = dense_jacobian(model, mean, x)
    draws = posterior.sample(5, seed=0)
    deviations = vector_of(draws, 1) - vector_of(mean)
    predictive = posterior.predict(x, num_samples=5, linearised=True)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    torch.testing.assert_close(predictive.outputs, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(predictive.unknowns["scale"], draws["likelihood.scale"].exp())
    inside = torch.cat([torch.full((w.numel(),), 0.09 * (k in names), dtype=torch.float64) for k, w in mean.items()])
    _, variance = output_moments(posterior, x, 10**7)
    torch.testing.assert_close(variance, (jacobian**2 * inside).sum(-1), rtol=1e-10, atol=1e-10)


def test_a_point_predicts_itself_and_stored_draws_are_refused():
    model, x = a_model(), randn(4, 3, seed=1)
    point = posteriors.Delta(model, model.init())
    assert torch.equal(point.predict(x, linearised=True).outputs, point.predict(x).outputs)
    draws = posteriors.Samples(model, a_gaussian(model)[0].sample(5, seed=0))
    with pytest.raises(pl.NotSupported, match="Samples is no Gaussian.*Kronecker.*linearised=True"):
        draws.predict(x, linearised=True)
    with pytest.raises(pl.NotSupported, match="Samples"):
        pl.mixture([point, draws]).predict(x, linearised=True)
