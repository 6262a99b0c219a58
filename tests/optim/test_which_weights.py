"""Weights that are frozen, unused, of several types, sparse, or under priors of their own."""

import copy

import pytest
import torch
from tests.optim.cases import N, assert_close, bare_loop, data, every, loop, losses, make, mlp, model, weights
from torch import nn

import plausible as pl


@every
def test_a_frozen_weight_stays_and_is_no_unknown(name):
    network = mlp()
    network[0].bias.requires_grad_(False)
    before = network[0].bias.clone()
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=2)
    assert torch.equal(network[0].bias, before)
    assert "0.bias" not in optimizer.posterior(model(network)).mean


@every
def test_a_weight_may_be_frozen_on_the_way(name):
    network = mlp()
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=2)
    believed = model(network)
    network[0].requires_grad_(False)
    before, known = weights(network), optimizer.posterior(believed)
    loop(optimizer, *data(), steps=3)
    assert torch.equal(network[0].weight, before["0.weight"])
    assert not torch.equal(network[2].weight, before["2.weight"])
    if name not in ("SGHMC", "SGLD"):  # nothing new is known of it
        found = optimizer.posterior(believed)
        assert torch.equal(found.sample(1, seed=0)["0.weight"], known.sample(1, seed=0)["0.weight"])


@every
def test_weights_cannot_be_added_on_the_way(name):
    network = mlp()
    network[0].requires_grad_(False)
    optimizer = make(name, network)
    with pytest.raises(RuntimeError, match="cannot be added to"):
        optimizer.add_param_group({"params": list(network[0].named_parameters())})


class WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 1).double(), nn.Linear(3, 2).double()

    def forward(self, x):
        return self.used(x)


@every
def test_a_weight_without_a_gradient_stays(name):
    torch.manual_seed(0)
    network = WithUnused()
    before = weights(network)
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=3)
    after = weights(network)
    assert torch.equal(after["unused.weight"], before["unused.weight"])
    assert not torch.equal(after["used.weight"], before["used.weight"])
    found = optimizer.posterior(model(network))
    if name != "IVON" and hasattr(found, "scale"):  # IVON starts from a curvature, the others from the prior
        assert torch.equal(found.scale["unused.weight"], torch.ones_like(before["unused.weight"]))


class OfTwoTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1).double()

    def forward(self, x):
        return self.second(self.first(x.float()).tanh().double())


@every
def test_weights_may_have_several_types(name):
    torch.manual_seed(0)
    network = OfTwoTypes()
    before = weights(network)
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=3)
    bare_loop(optimizer, *data(), steps=2)
    after = weights(network)
    assert all(after[k].dtype == w.dtype and not torch.equal(after[k], w) for k, w in before.items())
    restored = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(restored)
    loop(optimizer, *data(), steps=1)


@every
def test_prior_precisions_may_differ_by_name(name):
    found = []
    for precision in ({"2.*": 0.0, "*": 5.0}, 0.0, 5.0):
        network = mlp()
        optimizer = make(name, network, prior_precision=precision)
        loop(optimizer, *data(), steps=1)
        found.append(weights(network))
    mixed, without, strong = found
    if name != "IVON":  # whose first gradients are at draws as wide as other weights' priors let them be
        assert_close({"2.weight": mixed["2.weight"]}, {"2.weight": without["2.weight"]}, 1e-12)
        assert_close({"0.weight": mixed["0.weight"]}, {"0.weight": strong["0.weight"]}, 1e-12)
    assert not torch.allclose(mixed["2.weight"], strong["2.weight"], rtol=1e-6)


def test_the_rate_of_ivon_goes_with_each_weight_s_own_prior():
    """As published: of weights with a wide prior it is what it would be without the others."""
    network, (x, y) = mlp(), data()
    optimizer = make("IVON", network, prior_precision={"0.*": 1e4, "*": 1.0}, betas=(0.0, 0.99))
    before = weights(network)
    optimizer.zero_grad()
    with optimizer.sampled():
        losses(network, x, y).mean().backward()
    optimizer.step()
    for name, p in network.named_parameters():
        share = (1e4 if name.startswith("0") else 1.0) / N
        bottom = optimizer.state[p]["curvature"] + share
        moved = -0.1 * (0.1 + share) * (p.grad + share * before[name]) / bottom
        torch.testing.assert_close(p.detach() - before[name], moved, rtol=1e-10, atol=1e-14)


def test_a_weight_that_no_pattern_of_the_prior_matches_is_named():
    with pytest.raises(ValueError, match=r"0\.weight"):
        pl.optim.IVON(mlp(), num_data=N, prior_precision={"2.*": 1.0})


def test_a_pattern_of_the_prior_that_matches_no_weight_is_named():
    with pytest.raises(ValueError, match=r"'bias', which matches none of 0\.weight"):
        pl.optim.IVON(mlp(), num_data=N, prior_precision={"bias": 0.0, "*": 1.0})


@every
def test_a_sparse_gradient_is_refused_with_the_way_out(name):
    network = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 1))
    optimizer = make(name, network)
    with pytest.raises(RuntimeError, match=r"gradient of 0\.weight is sparse; build the layer with sparse=False"):
        with optimizer.sampled():
            network(torch.arange(10).reshape(5, 2) % 5).square().mean().backward()
        optimizer.step()


def test_a_prior_in_the_place_of_its_precision_is_refused_in_words():
    with pytest.raises(TypeError, match="prior_precision must be a number, 1 / scale² of a normal prior, got Normal"):
        pl.optim.IVON(mlp(), num_data=N, prior_precision=pl.priors.Normal(scale=1.0))


@every
@pytest.mark.parametrize("first", ["body", "all"])
def test_layers_may_be_frozen_at_first_and_trained_later(name, first):
    """A head is warmed up before its body is trained with it."""
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    before = weights(network)
    (network[0] if first == "body" else network).requires_grad_(False)
    if first == "body":
        loop(optimizer, x, y, steps=2)
        assert all(torch.equal(v, before[k]) for k, v in weights(network).items() if k.startswith("0"))
    network.requires_grad_(True)
    loop(optimizer, x, y, steps=3)
    assert all(not torch.equal(v, before[k]) for k, v in weights(network).items())
