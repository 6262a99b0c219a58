"""Which gradients a step takes: those of draws alone, and none that were cleared, whoever made or cleared them."""

import copy

import pytest
import torch
from tests.optim.cases import (
    SAMPLING,
    assert_close,
    assert_equal,
    bare_loop,
    data,
    every,
    loop,
    losses,
    make,
    mlp,
    sampling,
    stepped,
    weights,
)


def nothing():
    """What Lightning hands `step` in a loop that has run backward by itself."""


def state(optimizer):
    return {f"{k}.{what}": v for k, p in optimizer.weights().items() for what, v in optimizer.state[p].items()}


# --- closures that bring no gradient ---


@every
@pytest.mark.parametrize("draws", [1, 2])
def test_a_closure_that_brings_nothing_leaves_a_step_to_the_gradients_that_are_there(name, draws):
    expected, network, (x, y) = mlp(), mlp(), data()
    found = []
    for own, closure in ((expected, None), (network, nothing)):
        optimizer = make(name, own)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(draws):
                with optimizer.sampled():
                    losses(own, x, y).mean().backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step(closure)
        found.append(state(optimizer))
    assert_equal(weights(network), weights(expected))
    if name not in ("SGLD", "SGHMC"):
        assert_equal(found[1], found[0])


@sampling
def test_a_scaler_beside_a_closure_that_brings_nothing_is_not_forgotten(name):
    found = {}
    for closure in (None, nothing):
        network, (x, y) = mlp(torch.float32), data(torch.float32)
        optimizer = make(name, network)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                (losses(network, x, y).mean() * 2.0**10).backward()
            for p in (p for g in optimizer.param_groups for p in g["params"]):
                p.grad.mul_(2.0**-10)
            optimizer.step(closure)
        found[closure] = weights(network)
    assert_equal(found[nothing], found[None])


@sampling
def test_a_closure_that_brings_gradients_is_all_that_a_step_is_of(name):
    found = []
    for before in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network)
        loop(optimizer, x, y, steps=2)
        if before:  # draws that no step was made of
            with optimizer.sampled():
                losses(network, x[:4], y[:4]).mean().backward()
            optimizer._set("call", 0)

        def closure(network=network, optimizer=optimizer, x=x, y=y):
            optimizer.zero_grad()
            losses(network, x, y).mean().backward()  # and no loss is returned

        optimizer.step(closure)
        found.append(weights(network))
    assert_equal(found[1], found[0])


# --- gradients from outside of a draw ---


@sampling
def test_a_gradient_from_outside_of_a_draw_is_no_part_of_a_step(name):
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    loop(optimizer, x, y, steps=2)
    before = weights(network)
    optimizer.zero_grad()
    (losses(network, x[:12], y[:12]).mean() / 2).backward()
    with optimizer.sampled():
        (losses(network, x[12:], y[12:]).mean() / 2).backward()
    with pytest.raises(RuntimeError, match=r"0\.weight.*outside of a draw.*optimizer\.train\(\)"):
        optimizer.step()
    assert_equal(weights(network), before)
    loop(optimizer, x, y, steps=1)


@sampling
def test_parts_of_a_batch_outside_of_the_closure_are_refused(name):
    """As a framework accumulates gradients: it runs the closure by itself, and gives it to `step` for the last part."""
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)

    def closure(part):
        if not part:
            optimizer.zero_grad()
        loss = losses(network, x[12 * part : 12 * part + 12], y[12 * part : 12 * part + 12]).mean() / 2
        loss.backward()
        return loss

    closure(0)
    with pytest.raises(RuntimeError, match="outside of a draw"):
        optimizer.step(lambda: closure(1))
    optimizer.train()
    for part in range(2):
        closure(part)
    optimizer.step()
    optimizer.eval()


@sampling
def test_a_penalty_added_after_the_draw_is_refused(name):
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    with optimizer.sampled():
        losses(network, x, y).mean().backward()
    network[2].weight.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"2\.weight.*outside of a draw"):
        optimizer.step()


def own_none(network, optimizer):
    optimizer.zero_grad()


def own_zeros(network, optimizer):
    optimizer.zero_grad(set_to_none=False)


def network_none(network, optimizer):
    network.zero_grad()


def network_zeros(network, optimizer):
    network.zero_grad(set_to_none=False)


CLEARING = [own_none, own_zeros, network_none, network_zeros]
clearing = pytest.mark.parametrize("clear", CLEARING)


@sampling
@clearing
@pytest.mark.parametrize("where", ["before the draw", "in the draw"])
def test_gradients_from_outside_may_be_cleared_in_any_way(name, clear, where):
    expected, network, (x, y) = mlp(), mlp(), data()
    loop(make(name, expected), x, y, steps=3)
    optimizer = make(name, network)
    for _ in range(3):
        for _ in range(2):  # an attack, say
            losses(network, x[:5], y[:5]).mean().backward()
        if where == "before the draw":
            clear(network, optimizer)
        with optimizer.sampled():
            if where == "in the draw":
                clear(network, optimizer)
            losses(network, x, y).mean().backward()
        optimizer.step()
    assert_close(weights(network), weights(expected), 1e-12)


@sampling
@clearing
def test_gradients_of_the_last_step_may_be_cleared_by_the_closure(name, clear):
    expected, network, (x, y) = mlp(), mlp(), data()
    loop(make(name, expected), x, y, steps=3)
    optimizer = make(name, network)

    def closure():
        clear(network, optimizer)
        loss = losses(network, x, y).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        with torch.no_grad():
            losses(network, x, y).mean()
        torch.autograd.grad(losses(network, x, y).mean(), list(network.parameters()))
    assert_close(weights(network), weights(expected), 1e-12)


# --- gradients that were cleared ---


@every
@clearing
@pytest.mark.parametrize("style", ["sampled", "held"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_a_step_that_was_not_made_may_be_cleared_in_any_way(name, clear, style, reduction):
    found = []
    for skipping in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network, reduction=reduction)
        loop(optimizer, x, y, steps=1, reduction=reduction)
        if style == "held":
            optimizer.train()
        for skipped in (True, False) if skipping else (False,):
            clear(network, optimizer)
            rows = slice(0, 5) if skipped else slice(None)
            if style == "held":
                getattr(losses(network, x[rows], y[rows]), reduction)().backward()
            else:
                with optimizer.sampled():
                    getattr(losses(network, x[rows], y[rows]), reduction)().backward()
            if skipped and style == "sampled":
                optimizer._set("call", 0)
        optimizer.step()
        optimizer.eval()
        found.append((weights(network), state(optimizer)))
    assert_close(found[1][0], found[0][0], 1e-12)
    if name not in ("SGLD", "SGHMC"):
        assert_close(found[1][1], found[0][1], 1e-12)


@every
@clearing
def test_a_step_that_a_scaler_left_out_leaves_no_trace(name, clear):
    network, twin, (x, y) = mlp(torch.float32), mlp(torch.float32), data(torch.float32)
    loop(make(name, twin), x, y, steps=3)
    optimizer, scaler = make(name, network), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for factor in (1.0, float("inf"), 1.0, 1.0):
        call = optimizer.param_groups[0]["call"]
        with optimizer.sampled():
            scaler.scale(losses(network, x, y).mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        clear(network, optimizer)
        if factor > 1:
            optimizer._set("call", call)
    assert_close(weights(network), weights(twin), 1e-5)


@every
def test_gradients_of_several_draws_are_not_looked_at(name, monkeypatch):
    """Whether they were cleared is known without waiting for a device."""
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    loop(optimizer, x, y, steps=1)
    looked = []
    real = torch.Tensor.any
    monkeypatch.setattr(torch.Tensor, "any", lambda self, *a, **k: looked.append(self) or real(self, *a, **k))
    for _ in range(3):
        with optimizer.sampled():
            losses(network, x, y).mean().backward()
    assert not looked


@pytest.mark.parametrize("name", SAMPLING)
def test_a_copy_made_between_draws_goes_on(name):
    network, (x, y) = mlp(), data()
    optimizer = make(name, network)
    bare_loop(optimizer, x, y, steps=2)
    copied = copy.deepcopy(optimizer)
    for own in (optimizer, copied):
        loop(own, x, y, steps=2)
    assert_equal(weights(copied.network), weights(network))


def logged(network, x, y):
    torch.autograd.grad(losses(network, x, y).mean(), list(network.parameters()))


def cleared_by_the_network(network, x, y):
    losses(network, x, y).mean().backward()
    network.zero_grad()


def cleared_by_hand(network, x, y):
    losses(network, x, y).mean().backward()
    for p in network.parameters():
        p.grad = None


@every
@pytest.mark.parametrize("before", [logged, cleared_by_the_network, cleared_by_hand])
def test_gradients_that_no_step_is_made_of_count_for_nothing(name, before):
    """Looked at, to log their size, or cleared again, inside the same draw."""
    x, y = data()
    found = []
    for first in (None, before):
        optimizer = make(name, mlp())
        for _ in range(4):
            optimizer.zero_grad()
            with optimizer.sampled():
                if first is not None:
                    first(optimizer.network, x, y)
                losses(optimizer.network, x, y).mean().backward()
            optimizer.step()
        found.append(optimizer)
    assert_close(weights(found[1].network), weights(found[0].network), 1e-12)
    if hasattr(found[0], "scales"):
        assert_close(found[1].scales(), found[0].scales(), 1e-12)


@every
def test_gradients_set_by_hand_are_those_of_a_step(name):
    x, y = data()
    found = []
    for by_hand in (False, True):
        optimizer = make(name, mlp())
        network = optimizer.network
        for _ in range(4):
            optimizer.zero_grad()
            with optimizer.sampled():
                if by_hand:
                    parts = [
                        torch.autograd.grad(losses(network, x[i::2], y[i::2]).mean() / 2, list(network.parameters()))
                        for i in range(2)
                    ]
                    for p, *own in zip(network.parameters(), *parts, strict=True):
                        p.grad = own[0] + own[1]
                else:
                    for i in range(2):
                        (losses(network, x[i::2], y[i::2]).mean() / 2).backward()
            optimizer.step()
        found.append(weights(network))
    assert_close(found[1], found[0], 1e-12)


@sampling
def test_a_gradient_from_outside_stays_one_when_it_is_clipped(name):
    optimizer, (x, y) = stepped(name), data()
    network = optimizer.network
    losses(network, x, y).mean().backward()  # outside
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1e-3)
    with optimizer.sampled():
        losses(network, x, y).mean().backward()
    with pytest.raises(RuntimeError, match="came from outside of a draw"):
        optimizer.step()


@sampling
def test_a_closure_that_raises_leaves_nothing_of_the_draws_before(name):
    x, y = data()
    found = []
    for raising in (False, True):
        optimizer = make(name, mlp(), num_samples=3)
        loop(optimizer, x, y, steps=2)
        calls = []

        def closure(optimizer=optimizer, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise ValueError("the second draw")
            losses(optimizer.network, x, y).mean().backward()

        if raising:
            with pytest.raises(ValueError, match="the second draw"):
                optimizer.step(closure)
            assert optimizer.ledger.draws == 0 and not optimizer.ledger.done.tensors
            optimizer._set("call", 0)
        optimizer.zero_grad()
        with optimizer.sampled():
            losses(optimizer.network, x, y).mean().backward()
        optimizer.step()
        found.append(weights(optimizer.network))
    assert_equal(found[1], found[0])
