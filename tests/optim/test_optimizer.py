"""What a training loop may rely on, whichever optimiser it has."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from tests.optim.cases import (
    CASES,
    LOOPS,
    SAMPLING,
    N,
    assert_close,
    assert_equal,
    bare_loop,
    closure_loop,
    data,
    loop,
    losses,
    make,
    mlp,
    model,
    weights,
)
from torch import nn

import plausible as pl

every = pytest.mark.parametrize("name", CASES)
sampling = pytest.mark.parametrize("name", SAMPLING)


def stepped(name, network=None, **numbers):
    """An optimiser that has a curvature to draw with."""
    optimizer = make(name, network or mlp(), **numbers)
    loop(optimizer, *data(), steps=1)
    return optimizer


# --- drawing and putting back ---


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


# --- accumulation, clipping, mixed precision, schedules ---


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
@pytest.mark.parametrize("scaled", [False, True])
def test_clipping_shortens_the_gradient_and_changes_no_curvature(name, style, scaled):
    """The first step of all is s or h, which the clipped gradient is divided by: a shorter step by as much as was clipped."""
    moved = {}
    for most in (float("inf"), 0.01):
        network, (x, y) = mlp(), data()
        optimizer, scaler = make(name, network, prior_precision=1e-9), torch.amp.GradScaler("cpu", enabled=scaled)
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
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), most)
        scaler.step(optimizer)
        optimizer.eval()
        moved[most] = {k: w - start[k] for k, w in weights(network).items()}
    ratio = 0.01 / norm.item()
    assert_close({k: m / ratio for k, m in moved[0.01].items()}, moved[float("inf")], 1e-5)


@every
@pytest.mark.parametrize("style", ["sampled", "train and eval"])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_gradient_scaler_changes_nothing(name, style, unscale):
    plain, scaled, (x, y) = mlp(torch.float32), mlp(torch.float32), data(torch.float32)
    LOOPS[style](make(name, plain), x, y, steps=3)
    optimizer, scaler = make(name, scaled), torch.amp.GradScaler("cpu", init_scale=2.0**10)
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


# --- which weights ---


@every
def test_a_frozen_weight_stays_and_is_no_unknown(name):
    network = mlp()
    network[0].bias.requires_grad_(False)
    before = network[0].bias.clone()
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=2)
    assert torch.equal(network[0].bias, before)
    assert "0.bias" not in optimizer.posterior(model(network)).mean


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
    if name != "IVON":  # whose learning rate is rescaled by the average of all
        assert_close({"2.weight": mixed["2.weight"]}, {"2.weight": without["2.weight"]}, 1e-12)
        assert_close({"0.weight": mixed["0.weight"]}, {"0.weight": strong["0.weight"]}, 1e-12)
    assert not torch.allclose(mixed["2.weight"], strong["2.weight"], rtol=1e-6)


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


# --- the answer ---


@every
def test_a_posterior_predicts_and_owns_its_tensors(name):
    optimizer = stepped(name)
    loop(optimizer, *data(), steps=5)
    posterior = optimizer.posterior(model(optimizer.network))
    before = posterior.predict(data()[0]).mean
    loop(optimizer, *data(), steps=2)
    assert torch.equal(posterior.predict(data()[0]).mean, before)
    assert (posterior.predict(data()[0]).epistemic > 0).all()


@sampling
def test_the_posterior_is_the_same_while_a_draw_is_held(name):
    optimizer = stepped(name)
    expected = optimizer.posterior(model(optimizer.network))
    optimizer.train()
    found = optimizer.posterior(model(mlp()))
    assert_equal(found.mean, expected.mean)
    assert_equal(found.scale, expected.scale)


@sampling
def test_the_posterior_is_the_same_inside_a_context(name):
    optimizer = stepped(name)
    expected = optimizer.posterior(model(optimizer.network))
    with optimizer.sampled():
        found = optimizer.posterior(model(mlp()))
    assert_equal(found.mean, expected.mean)


def test_a_model_of_other_weights_is_refused():
    optimizer = stepped("IVON")
    with pytest.raises(ValueError, match=r"likelihood\.scale"):
        optimizer.posterior(pl.BayesianModel(mlp(), pl.likelihoods.Normal(scale="learn")))
    with pytest.raises(TypeError, match="BayesianModel"):
        optimizer.posterior(mlp())
    with pytest.raises(ValueError, match="temperature"):
        optimizer.posterior(model(mlp(), temperature=0.5))


@every
def test_weights_that_are_not_finite_make_no_posterior(name):
    optimizer, (x, y) = stepped(name), data()
    loop(optimizer, x, y * float("nan"), steps=3)
    with pytest.raises(FloatingPointError, match="finite"):
        optimizer.posterior(model(optimizer.network))


def test_norm_statistics_are_the_networks_own():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer, (x, y) = make("VOGN", network), data()
    stale = model(network)  # made before anything was trained
    loop(optimizer, x, y, steps=20)
    posterior = optimizer.posterior(stale)
    network.eval()
    drawn = posterior.sample(1, seed=0)
    with torch.no_grad():
        for k, p in network.named_parameters():
            p.copy_(drawn[k][0])
    torch.testing.assert_close(posterior.predict(x, num_samples=1).outputs[0], network(x))


# --- draws of a chain ---


def test_kept_draws_stay_spread_over_the_chain():
    network, (x, y) = mlp(), data()
    optimizer = make("SGLD", network, max_draws=8, burn_in=2)
    seen = []
    for _ in range(40):
        loop(optimizer, x, y, steps=1)
        seen.append(network[0].weight.detach().clone())
    draws = optimizer.posterior(model(network)).draws["0.weight"]
    assert optimizer.param_groups[0]["thin"] == 8
    assert torch.equal(draws, torch.stack([seen[2 + 8 * k - 1] for k in range(1, 5)]))


def test_two_fifths_of_a_chain_are_dropped_unless_told():
    network, (x, y) = mlp(), data()
    optimizer = make("SGHMC", network)
    loop(optimizer, x, y, steps=10)
    assert len(optimizer.posterior(model(network))) == 6


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


def test_closures_are_evaluated_at_the_held_draw():
    first, second = mlp(), mlp()
    closure_loop(make("IVON", first), *data(), steps=3)
    optimizer = make("IVON", second)
    optimizer.train()
    closure_loop(optimizer, *data(), steps=3)
    optimizer.eval()
    assert_close(weights(second), weights(first), 1e-12)
