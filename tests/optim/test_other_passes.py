"""Passes that are not a training pass, and gradients that hooks change on their way."""

import functools
import logging

import pytest
import torch
from tests.optim.cases import N, assert_close, data, every, losses, make, mlp, weights
from torch import nn
from torch.utils.checkpoint import checkpoint

import plausible as pl

MEASURE = ["KFAC", "NoisyKFAC", "OGN", "VOGN"]


@every
@pytest.mark.parametrize("held", [False, True])
def test_an_attack_while_all_weights_are_frozen_is_not_measured(name, held):
    found = []
    for attack in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network)
        if held:
            optimizer.train()
        optimizer.zero_grad()
        with torch.enable_grad() if held else optimizer.sampled():
            if attack:
                network.requires_grad_(False)
                attacked = x.clone().requires_grad_()
                torch.autograd.grad(losses(network, attacked, y).mean(), attacked)
                losses(network, x.clone().requires_grad_(), y).mean().backward()
                network.requires_grad_(True)
            losses(network, x, y).mean().backward()
        optimizer.step()
        optimizer.eval()
        own = {f"{k}.{what}": v for k, p in optimizer.weights().items() for what, v in optimizer.state[p].items()}
        found.append({**weights(network), **{k: v for k, v in own.items() if isinstance(v, torch.Tensor)}})
    assert_close(found[1], found[0], 1e-14)


@every
def test_transforms_of_the_network_go_by_unseen(name):
    """They bring nothing into `.grad`, whether there is an optimiser or not."""
    found = []
    for transformed in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network)
        optimizer.zero_grad()
        with optimizer.sampled():
            if transformed:
                transform(network, x, y)
            losses(network, x, y).mean().backward()
        optimizer.step()
        found.append(weights(network))
    assert_close(found[1], found[0], 1e-14)


def transform(network, x, y):
    own = {k: p.detach() for k, p in network.named_parameters()}
    torch.testing.assert_close(torch.func.vmap(network)(x), network(x), rtol=1e-12, atol=1e-12)
    torch.func.grad(lambda w: losses_with(network, w, x, y))(own)
    torch.func.jacrev(network)(x[:1])
    lent = {k: (2 * w).requires_grad_() for k, w in own.items()}
    losses_with(network, lent, x, y).backward()
    assert all(w.grad is not None for w in lent.values())


def half_of_it_elsewhere(name, reduction, elsewhere):
    """Weights after a step of which the second half of the data went another way through the network."""
    network, (x, y) = mlp(), data()
    optimizer = make(name, network, reduction=reduction)
    optimizer.zero_grad()
    with optimizer.sampled():
        for half, run in ((slice(0, N // 2), network), (slice(N // 2, N), elsewhere(network))):
            each = losses(run, x[half], y[half])
            (each.mean() / 2 if reduction == "mean" else each.sum()).backward()
    optimizer.step()
    return weights(network)


def made_of_its_own(network):
    own = {k: p + 0.0 for k, p in network.named_parameters()}
    return lambda inputs: torch.func.functional_call(network, own, (inputs,))


@every
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_passes_with_what_is_made_of_the_weights_bring_them_gradients(name, reduction):
    """As an inner step or noise on weights does; single examples' gradients are not told there, which is said."""
    if name in MEASURE:
        with pytest.raises(pl.NotSupported, match="functional_call"):
            half_of_it_elsewhere(name, reduction, made_of_its_own)
        return
    found = half_of_it_elsewhere(name, reduction, made_of_its_own)
    assert_close(found, half_of_it_elsewhere(name, reduction, lambda network: network), 1e-14)


@every
def test_a_gradient_that_came_through_a_transform_is_refused_where_examples_are_counted(name):
    with pytest.raises(pl.NotSupported, match="inside torch.func.vmap"):
        half_of_it_elsewhere(name, "sum", torch.func.vmap)


@every
def test_a_step_along_the_sign_of_a_transforms_gradient_is_no_gradient_through_it(name):
    """What comes back behind a sign is zero, whether it is detached or not."""
    found = []
    for detached in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network, reduction="sum")
        optimizer.zero_grad()
        with optimizer.sampled():
            uphill = torch.func.grad(lambda a, network=network, y=y: losses(network, a, y).sum())(x).sign()
            losses(network, x + 0.1 * (uphill.detach() if detached else uphill), y).sum().backward()
        optimizer.step()
        found.append(weights(network))
    assert_close(found[1], found[0], 1e-14)


@every
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_network_changes_nothing(name, reduction, reentrant):
    found = []
    for checkpointed in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network, reduction=reduction)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                given = x.clone().requires_grad_(reentrant)
                run = functools.partial(checkpoint, network, use_reentrant=reentrant) if checkpointed else network
                getattr(losses(run, given, y), reduction)().backward()
            optimizer.step()
        found.append(weights(network))
    assert_close(found[1], found[0], 1e-14)


def losses_with(network, own, x, y):
    return losses(lambda inputs: torch.func.functional_call(network, own, (inputs,)), x, y).mean()


@pytest.mark.parametrize("name", MEASURE)
def test_a_layer_that_was_replaced_is_still_named(name):
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    network[0] = nn.Linear(3, 5).double()
    with pytest.raises((ValueError, RuntimeError, pl.NotSupported), match=r"0\.(weight|bias)"), optimizer.sampled():
        losses(network, x, y).mean().backward()


class Reversing(nn.Module):
    """Hooks of its own change the gradients of its first layer, as a gradient reversal does, and of what it returns."""

    def __init__(self, hooked):
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 1)
        self.hooked = hooked

    def forward(self, x):
        hidden = self.body(x)
        if self.hooked and hidden.requires_grad:
            hidden.register_hook(lambda g: -2 * g)
        return self.head(hidden.tanh())


@pytest.mark.parametrize("at_output", [False, True])
def test_squares_are_of_the_gradients_that_hooks_have_changed(at_output):
    """Squares of single examples go with `.grad`: of one example they are its square."""
    torch.manual_seed(1)
    network = Reversing(not at_output).double()
    optimizer = make("OGN", network, damping=0.1, betas=(0.9, 0.9))
    x, y = (t[:1] for t in data())
    optimizer.zero_grad()
    with optimizer.sampled():
        out = network(x)
        if at_output:
            out.register_hook(lambda g: 3 * g)
        (0.5 * ((out - y) ** 2).sum(1)).mean().backward()
    gradients = {k: p.grad.clone() for k, p in network.named_parameters()}
    optimizer.step()
    found = {k: optimizer.state[p]["curvature"] for k, p in network.named_parameters()}
    shares = {k: float((found[k] / g**2).max()) for k, g in gradients.items()}
    for k, g in gradients.items():
        torch.testing.assert_close(found[k], shares["head.bias"] * g**2, rtol=1e-10, atol=1e-14)


class TimeFirst(nn.Module):
    """Its inputs have time in front, and what it returns has examples."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.inner(x)[0][-1])


def test_a_sum_over_examples_that_are_not_in_front_is_warned_of(caplog):
    network = TimeFirst()
    optimizer = pl.optim.IVON(network, num_data=5, reduction="sum")
    with caplog.at_level(logging.WARNING, "plausible"):
        for _ in range(2):
            optimizer.zero_grad()
            with optimizer.sampled():
                network(torch.randn(7, 10, 3)).square().sum().backward()
            optimizer.step()
    (said,) = [r.getMessage() for r in caplog.records if "first axis" in r.getMessage()]
    assert "7" in said and "10" in said
    assert sum("it is the number of training examples" in r.getMessage() for r in caplog.records) == 1  # another matter


def test_a_sum_over_frames_of_examples_in_front_is_not_warned_of(caplog):
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1))
    optimizer = pl.optim.IVON(network, num_data=N, reduction="sum")
    with caplog.at_level(logging.WARNING, "plausible"), optimizer.sampled():
        network(torch.randn(4, 5, 3)).square().sum().backward()
    assert not any("first axis" in r.getMessage() for r in caplog.records)


class WithStates(nn.Module):
    """It returns more than predictions, as a recurrent network does, of which examples are not in front."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        seen, states = self.inner(x)
        return self.head(seen), states


def test_what_a_network_returns_beside_its_predictions_is_not_warned_of(caplog):
    network = WithStates()
    optimizer = pl.optim.IVON(network, num_data=N, reduction="sum")
    with caplog.at_level(logging.WARNING, "plausible"), optimizer.sampled():
        network(torch.randn(10, 7, 3))[0].square().sum().backward()
    assert not any("first axis" in r.getMessage() for r in caplog.records)
