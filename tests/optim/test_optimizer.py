"""State that goes on to the bit, and a network that stays usable, whichever optimiser has it."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from tests.optim.cases import (
    LOOPS,
    N,
    assert_equal,
    bare_loop,
    data,
    every,
    loop,
    losses,
    make,
    mlp,
    model,
    sampling,
    stepped,
    weights,
)
from torch import nn

import plausible as pl

# --- state ---


@every
@pytest.mark.parametrize("style", LOOPS)
def test_a_loaded_state_goes_on_to_the_bit(name, style):
    first, second = mlp(), mlp()
    one = make(name, first)
    LOOPS[style](one, *data(), steps=3)
    file = io.BytesIO()
    torch.save({"network": first.state_dict(), "optimizer": one.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    two = make(name, second, seed=9, lr=0.5)  # all of which is in the state
    second.load_state_dict(saved["network"])
    two.load_state_dict(saved["optimizer"])
    LOOPS[style](one, *data(), steps=3)
    LOOPS[style](two, *data(), steps=3)
    assert_equal(weights(second), weights(first))
    a, b = (o.posterior(model(n)).sample(4, seed=0) for o, n in ((one, first), (two, second)))
    assert_equal(b, a)


def test_what_makes_a_posterior_is_in_the_state():
    one = make("VOGN", mlp(), augmentation_factor=10.0, num_samples=2)
    loop(one, *data(), steps=2)
    two = pl.optim.VOGN(copy.deepcopy(one.network), num_data=7)
    two.load_state_dict(one.state_dict())
    assert (two.num_data, two.num_samples) == (N, 2)
    assert_equal(two.scales(), one.scales())


def test_how_many_draws_a_chain_keeps_is_in_its_state():
    one = make("SGLD", mlp(), burn_in=3, max_draws=4)
    loop(one, *data(), steps=10)
    two = make("SGLD", copy.deepcopy(one.network))
    two.load_state_dict(one.state_dict())
    assert (two.burn_in, two.max_draws) == (3, 4)
    assert len(two.posterior(model(two.network))) == len(one.posterior(model(one.network)))


@sampling
def test_a_state_saved_while_a_draw_is_held_goes_on_to_the_bit(name):
    first, second = mlp(), mlp()
    one, two = make(name, first), make(name, second)
    bare_loop(one, *data(), steps=2)
    one.train()
    saved = copy.deepcopy((first.state_dict(), one.state_dict()))
    second.load_state_dict(saved[0])
    two.load_state_dict(saved[1])
    assert two.held
    bare_loop(one, *data(), steps=3)
    bare_loop(two, *data(), steps=3)
    assert_equal(weights(second), weights(first))


@every
def test_a_loaded_state_shares_no_memory(name):
    one, two = stepped(name), make(name, mlp())
    two.load_state_dict(one.state_dict())
    loop(two, *data())
    twin = stepped(name)
    loop(one, *data())
    loop(twin, *data())
    assert_equal(weights(one.network), weights(twin.network))


@every
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_goes_on_to_the_bit_with_a_copy_of_the_network(name, copier):
    optimizer = make(name, mlp(), reduction="sum")
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)  # puts a step of its own into the optimiser
    loop(optimizer, *data(), steps=3, reduction="sum")  # after which K-FAC does not measure at once
    network, copied = copier((optimizer.network, optimizer))
    assert copied.network is network
    loop(copied, *data(), steps=3, reduction="sum")
    before = weights(optimizer.network)
    loop(optimizer, *data(), steps=3, reduction="sum")
    assert_equal(weights(network), weights(optimizer.network))
    assert any(not torch.equal(v, before[k]) for k, v in weights(network).items())


@every
def test_a_failed_step_leaves_nothing_behind(name):
    optimizer = stepped(name)
    optimizer.train()
    optimizer.network[0].weight.grad = torch.eye(5, 3).to_sparse().double()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    optimizer.network.zero_grad()
    losses(optimizer.network, *data()).mean().backward()
    optimizer.step()


# --- the network stays usable ---


@every
def test_a_watched_network_can_be_copied_and_pickled(name):
    optimizer = make(name, mlp(), reduction="sum")
    copied = copy.deepcopy(optimizer.network)
    restored = pickle.loads(pickle.dumps(optimizer.network))
    losses(copied, *data()).sum().backward()
    losses(restored, *data()).sum().backward()
    assert optimizer.ledger.now.examples == 0


def test_an_optimiser_that_is_gone_leaves_no_hooks():
    network = mlp()
    optimizer = make("VOGN", network)
    gone = weakref.ref(optimizer)
    loop(optimizer, *data(), steps=1)
    del optimizer
    gc.collect()
    assert gone() is None
    assert not network._forward_hooks and not network._forward_pre_hooks


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"reduction": "none"}, "reduction"),
        ({"prior_precision": -1.0}, "prior_precision"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"num_samples": 0}, "num_samples"),
        ({"betas": (0.9, 0.5), "tempering": 4.0}, "tempering 4.0 must be at most"),
    ],
)
def test_numbers_out_of_range_are_errors_that_say_so(numbers, message):
    with pytest.raises(ValueError, match=message):
        make("VOGN", mlp(), **numbers)


@every
def test_complex_weights_are_refused_by_name(name):
    with pytest.raises(ValueError, match="weight is complex"):
        make(name, nn.Linear(3, 1, dtype=torch.complex64))
