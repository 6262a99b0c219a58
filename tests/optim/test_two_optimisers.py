"""Optimisers and networks whose ties change: a second optimiser, one inside its network, weights that came later."""

import copy
import gc
import io

import pytest
import torch
from tests.optim.cases import assert_equal, data, every, loop, losses, make, mlp, model, stepped, weights
from torch import nn

import plausible as pl

# --- a second optimiser ---


@every
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_newest_optimiser_of_a_network_takes_over(name, reduction):
    expected, network = mlp(), mlp()
    loop(make(name, expected, reduction=reduction), *data(), steps=2, reduction=reduction)
    old = make(name, network, reduction=reduction)
    torch.optim.lr_scheduler.ExponentialLR(old, 0.9)  # which keeps it alive
    new = make(name, network, reduction=reduction)
    loop(new, *data(), steps=2, reduction=reduction)
    assert_equal(weights(network), weights(expected))
    with pytest.raises(RuntimeError, match="another optimiser of these weights"):
        loop(old, *data(), steps=1, reduction=reduction)
    del old
    gc.collect()
    loop(new, *data(), steps=1, reduction=reduction)


@every
def test_an_optimiser_of_a_part_takes_over_from_that_of_the_whole(name):
    network, expected = mlp(), mlp()
    old = make(name, nn.Sequential(network))
    loop(make(name, network), *data(), steps=2)
    loop(make(name, expected), *data(), steps=2)
    assert_equal(weights(network), weights(expected))
    with pytest.raises(RuntimeError, match="another optimiser"):
        loop(old, *data(), steps=1)


@every
def test_optimisers_of_two_parts_go_on_side_by_side(name):
    x, y = data()
    torch.manual_seed(0)
    first, second = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
    alone, other = copy.deepcopy((first, second))
    a, b, c = make(name, first), make(name, second), make(name, alone)
    for own, network, rest in (((a, b), first, second), ((c,), alone, other)):
        for o in own:
            o.zero_grad()
        with own[0].sampled():
            ((rest(network(x).tanh()) - y) ** 2).mean().backward()
        own[0].step()
    assert_equal(weights(first), weights(alone))
    second.zero_grad()
    with b.sampled():
        ((second(first(x).tanh()) - y) ** 2).mean().backward()
    b.step()


# --- an optimiser that its network keeps ---


def saved(network):
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every
@pytest.mark.parametrize("copier", [copy.deepcopy, saved])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_network_may_keep_its_optimiser(name, copier, reduction):
    network = mlp()
    network.optimizer = make(name, network, reduction=reduction)
    network.forward = None  # a plain attribute that a copy has, too
    del network.forward
    loop(network.optimizer, *data(), steps=3, reduction=reduction)
    copied = copier(network)
    assert copied.optimizer.network is copied
    loop(copied.optimizer, *data(), steps=3, reduction=reduction)
    loop(network.optimizer, *data(), steps=3, reduction=reduction)
    assert_equal(weights(copied), weights(network))
    network.optimizer.posterior(model(network)).predict(data()[0])


# --- weights that came later ---


@every
def test_a_weight_that_is_trained_later_is_named_once(name, caplog):
    network = mlp()
    network[0].bias.requires_grad_(False)
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=12)
    assert not caplog.text
    network[0].bias.requires_grad_(True)
    loop(optimizer, *data(), steps=25)
    (said,) = [r.getMessage() for r in caplog.records if "0.bias" in r.getMessage()]
    assert f"make another {name}" in said


@every
def test_a_layer_that_was_replaced_is_named(name, caplog):
    optimizer = stepped(name)
    network = optimizer.network
    network[2] = nn.Linear(5, 1).double()
    said = ""
    try:
        for _ in range(12):
            network.zero_grad()
            with optimizer.sampled():
                losses(network, *data()).mean().backward()
            optimizer.step()
    except pl.NotSupported as error:  # where the passes are recorded
        said = str(error)
    assert "2.weight" in caplog.text + said and f"make another {name}" in caplog.text + said
