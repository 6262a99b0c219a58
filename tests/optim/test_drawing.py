"""Drawing around the mean and putting it back, whichever optimiser does it."""

import pytest
import torch
from tests.optim.cases import (
    CASES,
    assert_close,
    assert_equal,
    bare_loop,
    closure_loop,
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


@sampling
def test_the_draw_is_gone_after_the_context(name):
    optimizer = stepped(name)
    before = weights(optimizer.network)
    with optimizer.sampled():
        inside = weights(optimizer.network)
    assert all(not torch.equal(inside[k], before[k]) for k in before)
    assert_equal(weights(optimizer.network), before)


@every
def test_an_exception_leaves_weights_and_gradients_as_they_were(name):
    optimizer, (x, y) = stepped(name), data()
    optimizer.zero_grad()
    with optimizer.sampled():
        losses(optimizer.network, x, y).mean().backward()
    before = weights(optimizer.network)
    gradients = {k: p.grad.clone() for k, p in optimizer.network.named_parameters()}
    with pytest.raises(ZeroDivisionError), optimizer.sampled():
        losses(optimizer.network, x[:3], y[:3]).mean().backward()
        raise ZeroDivisionError
    assert_equal(weights(optimizer.network), before)
    assert_equal({k: p.grad for k, p in optimizer.network.named_parameters()}, gradients)
    twin = stepped(name)
    loop(twin, x, y, steps=1)
    optimizer.step()
    assert_equal(weights(optimizer.network), weights(twin.network))


@sampling
def test_an_exception_inside_a_closure_leaves_the_mean(name):
    optimizer = stepped(name)
    before = weights(optimizer.network)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert_equal(weights(optimizer.network), before)


@sampling
def test_draws_of_a_closure_that_raised_are_no_part_of_the_next_step(name):
    def after(*failing):
        optimizer, calls = make(name, mlp(), num_samples=2), []
        x, y = data()
        loop(optimizer, x, y, steps=1)

        def closure():
            calls.append(None)
            optimizer.zero_grad()
            loss = losses(optimizer.network, x, y).mean() * (1 / (len(calls) not in failing))
            loss.backward()
            return loss

        if failing:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(closure)
            for group in optimizer.param_groups:
                group["call"] = 0  # so that the draws are those of the run that did not fail
        optimizer.step(closure)
        return weights(optimizer.network)

    assert_equal(after(2), after())


@every
def test_a_step_inside_the_context_is_told_where_it_belongs(name):
    optimizer = stepped(name)
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="belongs after it"), optimizer.sampled():
        losses(optimizer.network, *data()).mean().backward()
        optimizer.step()


@sampling
def test_a_backward_pass_outside_the_context_is_an_error_and_not_a_wrong_gradient(name):
    optimizer, (x, y) = stepped(name), data()
    with optimizer.sampled():
        loss = losses(optimizer.network, x, y).mean()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@sampling
def test_a_step_without_a_draw_says_how_to_make_one(name):
    optimizer = make(name, mlp())
    losses(optimizer.network, *data()).mean().backward()
    with pytest.raises(RuntimeError, match=r"optimizer\.sampled\(\)"):
        optimizer.step()


@sampling
def test_draws_inside_draws_are_refused(name):
    optimizer = make(name, mlp())
    with pytest.raises(RuntimeError, match="does not nest"), optimizer.sampled(), optimizer.sampled():
        pass


@sampling
def test_train_holds_a_draw_and_eval_brings_the_mean_back(name):
    optimizer = stepped(name)
    mean = weights(optimizer.network)
    optimizer.train()
    held = weights(optimizer.network)
    optimizer.train()  # as a loop may call it before every batch
    assert_equal(weights(optimizer.network), held)
    assert all(not torch.equal(held[k], mean[k]) for k in mean)
    optimizer.eval()
    optimizer.eval()
    assert_equal(weights(optimizer.network), mean)


@sampling
def test_a_draw_made_while_another_is_held_is_around_the_mean_too(name):
    optimizer, twin, (x, y) = stepped(name), stepped(name), data()
    optimizer.train()
    held = weights(optimizer.network)
    with optimizer.sampled():
        losses(optimizer.network, x, y).mean().backward()
    assert_equal(weights(optimizer.network), held)
    twin._spend()  # the held draw
    with twin.sampled():
        losses(twin.network, x, y).mean().backward()
    optimizer.step()
    twin.step()
    optimizer.eval()
    assert_close(weights(optimizer.network), weights(twin.network), 1e-12)


@every
def test_the_global_generator_is_never_touched(name):
    optimizer = make(name, mlp())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loop(optimizer, *data(), steps=2)
    bare_loop(optimizer, *data(), steps=2)
    optimizer.posterior(model(optimizer.network))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("OGN", "KFAC")])
def test_the_seed_decides_the_draws(name):
    runs = [mlp() for _ in range(3)]
    for network, seed in zip(runs, (0, 0, 1), strict=True):
        loop(make(name, network, seed=seed), *data(), steps=3)
    assert_equal(weights(runs[0]), weights(runs[1]))
    assert not torch.equal(runs[0][0].weight, runs[2][0].weight)


def test_closures_are_evaluated_at_the_held_draw():
    first, second = mlp(), mlp()
    closure_loop(make("IVON", first), *data(), steps=3)
    optimizer = make("IVON", second)
    optimizer.train()
    closure_loop(optimizer, *data(), steps=3)
    optimizer.eval()
    assert_close(weights(second), weights(first), 1e-12)
