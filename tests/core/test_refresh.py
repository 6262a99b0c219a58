"""Norm statistics belong to a draw of the weights: gathered from training data, never averaged, never written back."""

import copy

import pytest
import torch
from tests.oracles import vector_of
from torch import nn

import plausible as pl
from plausible import posteriors

QUIET = {"progress": False, "compile": False}


def network(dtype=torch.float64):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)


def data(n=512, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = 2 + 3 * torch.randn(n, 3, generator=rng, dtype=torch.float64)
    return x, (x.sum(1) > 6).long()


def a_model():
    return pl.BayesianModel(network(), pl.likelihoods.Categorical())


def a_gaussian(model, scale=0.2):
    return posteriors.Diagonal(model, model.init(), {k: torch.full_like(w, scale) for k, w in model.start.items()})


def torch_network(params, blocks, momentum=None):
    """torch's own: the draw's weights, statistics as a cumulative average over the blocks, then eval mode."""
    net = network()
    net.load_state_dict(params, strict=False)
    net[1].reset_running_stats()
    net[1].momentum = momentum
    net.train()
    with torch.no_grad():
        for block in blocks:
            net(block)
    return net.eval()


def test_statistics_of_each_draw_are_those_of_torchs_batch_norm_over_the_same_data():
    model, (x, y) = a_model(), data(512)
    posterior = a_gaussian(model).refresh((x, y), num_samples=4, seed=3)
    draws = posterior.sample(4, seed=3)
    for i in range(4):
        params = {k: w[i] for k, w in draws.items()}
        hidden = torch.nn.functional.linear(x, params["0.weight"], params["0.bias"])
        # The mean does not depend on how data are cut into blocks; the variance of a block of 256 differs a little.
        torch.testing.assert_close(posterior.bank["1.running_mean"][i], hidden.mean(0), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(posterior.bank["1.running_var"][i], hidden.var(0), rtol=0.02, atol=0.02)
    assert not torch.allclose(posterior.bank["1.running_mean"][0], posterior.bank["1.running_mean"][1])


def test_blocks_average_as_torchs_cumulative_average_does():
    from plausible.core.refresh import statistics_of

    model, (x, _) = a_model(), data(300)
    params = model.init(2)
    blocks = list(x.split(100))
    found = statistics_of(model, params, blocks)
    truth = torch_network(params, blocks)
    torch.testing.assert_close(found["1.running_mean"], truth[1].running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["1.running_var"], truth[1].running_var, rtol=1e-12, atol=1e-12)


def test_a_ragged_last_block_counts_by_its_examples():
    from plausible.core.refresh import statistics_of

    model, (x, _) = a_model(), data(130)
    params = model.init(2)
    found = statistics_of(model, params, list(x.split(100)))
    hidden = torch.nn.functional.linear(x, params["0.weight"], params["0.bias"])
    torch.testing.assert_close(found["1.running_mean"], hidden.mean(0), rtol=1e-12, atol=1e-12)
    expected = (100 * hidden[:100].var(0) + 30 * hidden[100:].var(0)) / 130
    torch.testing.assert_close(found["1.running_var"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1 + 256, 1 + 16])
def test_a_last_example_left_alone_is_no_error(n):
    """Batch norm refuses a batch of one; how data happen to divide must not matter."""
    model, (x, y) = a_model(), data(n)
    posterior = pl.fit(model, (x, y), pl.MAP(), epochs=1, batch_size=16, **QUIET)
    assert torch.isfinite(posterior.predict(x).probs).all()
    a_gaussian(model).refresh((x, y), num_samples=2)


def test_predictions_use_the_statistics_of_their_own_draw():
    model, (x, y) = a_model(), data(256)
    posterior = a_gaussian(model).refresh((x, y), num_samples=6, seed=0)
    draws, new = posterior.sample(6, seed=0), data(10, seed=1)[0]
    predictive = posterior.predict(new, num_samples=6)
    for i in range(6):
        truth = torch_network({k: w[i] for k, w in draws.items()}, [x])
        torch.testing.assert_close(predictive.outputs[i], truth(new).detach(), rtol=1e-9, atol=1e-9)
    in_blocks = posterior.predict(new, num_samples=6, memory=40_000)
    torch.testing.assert_close(in_blocks.outputs, predictive.outputs, rtol=1e-10, atol=1e-10)


def test_a_fit_refreshes_what_it_returns():
    model, (x, y) = a_model(), data(200)
    new = data(10, seed=1)[0]
    posterior = pl.fit(model, (x, y), pl.MAP(learning_rate=0.01), epochs=3, batch_size=50, **QUIET)
    hidden = torch.nn.functional.linear(x, posterior.mean["0.weight"], posterior.mean["0.bias"])
    torch.testing.assert_close(posterior.bank["1.running_mean"][0], hidden.mean(0), rtol=1e-9, atol=1e-9)
    assert torch.isfinite(posterior.predict(new).probs).all()
    swag = pl.fit(model, (x, y), pl.SWAG(rank=3, snapshots=6), epochs=8, batch_size=50, **QUIET)
    draws = swag.sample(64, seed=0)
    assert swag.predict(new).outputs.shape == (64, 10, 2)
    hidden = torch.einsum("ni,soi->sno", x, draws["0.weight"]) + draws["0.bias"][:, None]
    torch.testing.assert_close(swag.bank["1.running_mean"], hidden.mean(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "method", [pl.DeepEnsemble(members=4), pl.MultiSWAG(modes=2, base=pl.SWAG(rank=2, snapshots=4))]
)
def test_every_component_of_a_mixture_has_statistics_of_its_own(method):
    model, (x, y) = a_model(), data(200)
    mixture = pl.fit(model, (x, y), method, epochs=5, batch_size=50, **QUIET)
    banks = [c.bank["1.running_mean"][0] for c in mixture.components]
    assert all(not torch.allclose(a, b) for i, a in enumerate(banks) for b in banks[:i])
    assert torch.isfinite(mixture.predict(x[:5]).probs).all()


def test_past_the_bank_the_error_names_refresh_and_refresh_helps():
    model, (x, y) = a_model(), data(200)
    posterior = pl.fit(model, (x, y), pl.SWAG(rank=2, snapshots=4), epochs=4, batch_size=50, **QUIET)
    for wanted in ({"num_samples": 70}, {"seed": 1}):
        with pytest.raises(ValueError, match="refresh"):
            posterior.predict(x[:5], **wanted)
    assert posterior.refresh((x, y), num_samples=70).predict(x[:5], num_samples=70).outputs.shape[0] == 70
    posterior.refresh((x, y), num_samples=8, seed=1)
    assert posterior.predict(x[:5], num_samples=8, seed=1).outputs.shape[0] == 8


def test_a_posterior_without_statistics_says_so():
    with pytest.raises(ValueError, match="refresh"):
        a_gaussian(a_model()).predict(data(5)[0])


def test_the_users_network_and_the_models_buffers_are_untouched():
    net = network()
    before = copy.deepcopy(net.state_dict())
    model = pl.BayesianModel(net, pl.likelihoods.Categorical())
    x, y = data(100)
    posterior = pl.fit(model, (x, y), pl.MAP(), epochs=2, batch_size=30, validation=(x, y), **QUIET)
    posterior.refresh((x, y), num_samples=1)
    posterior.predict(x)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in model.network.buffers.items())


def test_evaluation_during_a_run_does_not_change_it():
    x, y = data(100)
    plain = pl.fit(a_model(), (x, y), pl.MAP(), epochs=3, batch_size=30, **QUIET)
    watched = pl.fit(a_model(), (x, y), pl.MAP(), epochs=3, batch_size=30, validation=data(50, seed=2), **QUIET)
    assert torch.equal(vector_of(plain.mean), vector_of(watched.mean))


def test_training_uses_the_batchs_own_statistics():
    """A step's slope is that of torch's batch norm in train mode."""
    model, (x, y) = a_model(), data(20)
    params = model.init()
    net = network().train()
    loss = -torch.nn.functional.cross_entropy(net(x), y, reduction="sum")
    loss = loss + sum(torch.distributions.Normal(0.0, 1.0).log_prob(p).sum() for p in net.parameters())
    truth = torch.autograd.grad(loss, list(net.parameters()))
    _, slopes = model.bound(training=True).slope(params, (x, y), num_data=20)
    for slope, expected in zip(slopes.values(), truth, strict=True):
        torch.testing.assert_close(slope, expected, rtol=1e-10, atol=1e-10)
