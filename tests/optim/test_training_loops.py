"""What a training loop may rely on: accumulation, clipping, mixed precision, schedules."""

from contextlib import nullcontext

import pytest
import torch
from tests.optim.cases import (
    LOOPS,
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
    weights,
)


@every
def test_backward_passes_of_micro_batches_add_up_to_the_whole_batch(name):
    whole, parts, (x, y) = mlp(), mlp(), data()
    loop(make(name, whole), x, y, steps=3)
    optimizer = make(name, parts)
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.sampled():
            for k in range(4):
                (losses(parts, x[6 * k : 6 * k + 6], y[6 * k : 6 * k + 6]).mean() / 4).backward()
        optimizer.step()
    assert_close(weights(parts), weights(whole), 1e-10)


@every
def test_a_bare_loop_may_accumulate_as_well(name):
    whole, parts, (x, y) = mlp(), mlp(), data()
    bare_loop(make(name, whole), x, y, steps=3)
    optimizer = make(name, parts)
    optimizer.train()
    for _ in range(3):
        for k in range(4):
            (losses(parts, x[6 * k : 6 * k + 6], y[6 * k : 6 * k + 6]).mean() / 4).backward()
        optimizer.step()
        parts.zero_grad()  # not the optimiser's own
    optimizer.eval()
    assert_close(weights(parts), weights(whole), 1e-10)


@every
def test_several_contexts_average_over_their_draws(name):
    """Whether gradients are cleared inside, as published examples do, or not at all."""
    found = []
    for clear in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network)
        for _ in range(3):
            optimizer.zero_grad()
            for k in range(3):
                with optimizer.sampled():
                    if clear:
                        optimizer.zero_grad()
                    rows = slice(8 * k, 8 * k + 8)
                    losses(network, x[rows], y[rows]).mean().backward()
            optimizer.step()
        found.append(weights(network))
    assert_equal(found[0], found[1])
    if name not in SAMPLING:  # at one place, three batches are one batch
        whole = mlp()
        loop(make(name, whole), *data(), steps=3)
        assert_close(found[0], weights(whole), 1e-10)


def test_a_closure_is_run_at_as_many_draws_as_asked_and_their_losses_averaged():
    network, twin, (x, y) = mlp(), mlp(), data()
    optimizer = make("IVON", network, num_samples=3)
    seen = []

    def closure():
        seen.append(weights(network))
        optimizer.zero_grad()
        loss = losses(network, x, y).mean()
        loss.backward()
        return loss

    found = optimizer.step(closure)
    assert len({w["0.weight"][0, 0].item() for w in seen}) == 3
    at_draws = []
    for drawn in seen:
        twin.load_state_dict(drawn)
        at_draws.append(losses(twin, x, y).mean().item())
    assert found.item() == pytest.approx(sum(at_draws) / 3, rel=1e-12)


@every
@pytest.mark.parametrize("style", ["sampled", "train and eval"])
@pytest.mark.parametrize("scale", [None, 2.0**16, 100.0])
@pytest.mark.parametrize(("whose", "most"), [("network", 0.01), ("optimizer", 0.01), ("optimizer", 1e-4)])
def test_clipping_shortens_the_gradient_and_changes_no_curvature(name, style, scale, whose, most):
    """The first step of all is s or h, which the clipped gradient is divided by: a shorter step by as much as was clipped."""
    moved = {}
    for limit in (float("inf"), most):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network, prior_precision=1e-9)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        if name in ("SGLD", "SGHMC"):
            optimizer._set("temperature", 1e-30)  # the gradient alone
        start = weights(network)
        if style == "sampled":
            with optimizer.sampled():
                scaler.scale(losses(network, x, y).mean()).backward()
        else:
            optimizer.train()
            scaler.scale(losses(network, x, y).mean()).backward()
        scaler.unscale_(optimizer)
        own = network.parameters() if whose == "network" else [p for g in optimizer.param_groups for p in g["params"]]
        norm = torch.nn.utils.clip_grad_norm_(own, limit)
        scaler.step(optimizer)
        optimizer.eval()
        moved[limit] = {k: w - start[k] for k, w in weights(network).items()}
    ratio = most / norm.item()
    assert_close({k: m / ratio for k, m in moved[most].items()}, moved[float("inf")], 1e-5)


@every
@pytest.mark.parametrize("style", ["sampled", "train and eval"])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("scale", [2.0**10, 100.0])
def test_a_gradient_scaler_changes_nothing(name, style, unscale, scale):
    plain, scaled, (x, y) = mlp(torch.float32), mlp(torch.float32), data(torch.float32)
    LOOPS[style](make(name, plain), x, y, steps=3)
    optimizer, scaler = make(name, scaled), torch.amp.GradScaler("cpu", init_scale=scale)
    if style != "sampled":
        optimizer.train()
    for _ in range(3):
        optimizer.zero_grad()
        if style == "sampled":
            with optimizer.sampled():
                scaler.scale(losses(scaled, x, y).mean()).backward()
        else:
            scaler.scale(losses(scaled, x, y).mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    optimizer.eval()
    assert_close(weights(scaled), weights(plain), 1e-5)


@every
@pytest.mark.parametrize("style", ["sampled", "train and eval"])
def test_a_step_that_overflowed_is_left_out(name, style):
    network, twin, (x, y) = mlp(torch.float32), mlp(torch.float32), data(torch.float32)
    optimizer, scaler = make(name, network), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    LOOPS[style](make(name, twin), x, y, steps=2)
    if style != "sampled":
        optimizer.train()
    before = weights(network)
    for factor in (1.0, float("inf"), 1.0):
        network.zero_grad()
        call = optimizer.param_groups[0]["call"]
        if style == "sampled":
            with optimizer.sampled():
                scaler.scale(losses(network, x, y).mean() * factor).backward()
        else:
            scaler.scale(losses(network, x, y).mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        if factor > 1 and style == "sampled":
            optimizer._set("call", call)  # the draw of the step that was left out; only so is the twin's the same
    optimizer.eval()
    assert optimizer.param_groups[0]["step"] == 2
    assert not torch.equal(weights(network)["0.weight"], before["0.weight"])
    assert_close(weights(network), weights(twin), 1e-5)


@every
def test_mixed_precision_passes_are_measured(name):
    network, (x, y) = mlp(torch.float32), data(torch.float32)
    optimizer = make(name, network)
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = losses(network, x, y).float().mean()
            loss.backward()
        optimizer.step()
    exact = mlp(torch.float32)
    loop(make(name, exact), x, y, steps=2)
    for k, w in weights(exact).items():
        assert (weights(network)[k] - w).norm() < 0.05 * (w - weights(mlp(torch.float32))[k]).norm() + 1e-3


@every
def test_a_scheduler_sets_the_learning_rate(name):
    network, twin, (x, y) = mlp(), mlp(), data()
    optimizer, other = make(name, network), make(name, twin)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    start = optimizer.param_groups[0]["lr"]
    for i in range(4):
        loop(optimizer, x, y, steps=1)
        scheduler.step()
        other.param_groups[0]["lr"] = start * (1.0 if i < 2 else 0.1)
        loop(other, x, y, steps=1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(start * 0.01)
    assert_equal(weights(network), weights(twin))


@every
@pytest.mark.parametrize("style", ["sampled", "train and eval"])
def test_gradients_that_no_backward_brought_go_with_a_scaler(name, style):
    found = {}
    for scaled in (False, True):
        network, (x, y) = mlp(torch.float32), data(torch.float32)
        optimizer, own = make(name, network), list(network.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        if style != "sampled":
            optimizer.train()
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled() if style == "sampled" else nullcontext():
                loss = scaler.scale(losses(network, x, y).mean())
                for p, g in zip(own, torch.autograd.grad(loss, own), strict=True):
                    p.grad = g
            scaler.step(optimizer)
            scaler.update()
        optimizer.eval()
        found[scaled] = weights(network)
    assert_close(found[True], found[False], 1e-5)


@every
def test_an_attack_on_the_inputs_is_not_counted(name):
    found = {}
    for attack in (False, True):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network, reduction="sum")
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                if attack:
                    attacked = x.clone().requires_grad_()
                    torch.autograd.grad(losses(network, attacked, y).sum(), attacked)
                losses(network, x, y).sum().backward()
            optimizer.step()
        found[attack] = weights(network)
    assert_equal(found[True], found[False])


@every
def test_gradients_that_are_replaced_beside_a_scaler_change_no_curvature(name):
    found = {}
    for scaled in (False, True):
        network, (x, y) = mlp(torch.float32), data(torch.float32)
        optimizer = make(name, network)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=scaled)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                scaler.scale(losses(network, x, y).mean()).backward()
            scaler.unscale_(optimizer)
            for p in (p for g in optimizer.param_groups for p in g["params"]):
                p.grad = None if p.grad is None else p.grad * 0.3
            scaler.step(optimizer)
            scaler.update()
        found[scaled] = weights(network)
    assert_close(found[True], found[False], 1e-5)


def test_a_gradient_that_comes_after_its_draw_is_told_where_it_belongs():
    network, (x, y) = mlp(), data()
    network.spare = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    network.forward = lambda x: network[2](network[1](network[0](x)))
    optimizer = make("IVON", network)
    with optimizer.sampled():
        losses(network, x, y).mean().backward()
    network.spare.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"spare.*inside `with optimizer\.sampled"):
        optimizer.step()


@every
def test_gradients_that_no_backward_brought_make_the_same_steps(name):
    found = {}
    for way in ("backward", "autograd.grad"):
        network, (x, y) = mlp(), data()
        optimizer = make(name, network)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                loss = losses(network, x, y).mean()
                if way == "backward":
                    loss.backward()
                else:
                    own = list(network.parameters())
                    for p, g in zip(own, torch.autograd.grad(loss, own), strict=True):
                        p.grad = g
            optimizer.step()
        found[way] = weights(network)
    assert_close(found["autograd.grad"], found["backward"], 1e-9)
