"""Variance reduction, cycles, thermometers in words, and what the stochastic-gradient samplers refuse."""

import logging
import math

import numpy as np
import pytest
import torch
from tests.contract_cases import NETWORKS, blobs, mlp, model
from tests.inference.stationary import normal_target
from tests.oracles import linear_regression
from torch import nn

import plausible as pl
from plausible.core.data import make_source
from plausible.core.partition import Partitioned
from plausible.inference.mcmc.variance_reduction import reduction
from plausible.weights import tree

QUIET = {"progress": False, "compile": False, "device": "cpu"}


def regression_model(n=41, batch_size=8):
    """A small network, its data as batches of which the last is ragged, and the model bound to them."""
    truth = linear_regression(n=n, inputs=3, noise=0.5, seed=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    bare = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.5))
    source = make_source(bare, truth.data(), batch_size=batch_size, seed=0, device=torch.device("cpu"))
    return bare.bound(num_data=source.num_data, steps_per_epoch=source.steps_per_epoch), source, truth.data()


def filled(name, bound, source, place):
    """The memory of a reduction after a sweep at a place, and the source that it takes its batches from."""
    own = Partitioned(source) if reduction(name).fixed_batches else source
    memory = reduction(name).init(bound, place)
    for number, batch in enumerate(own.sweep()):
        memory = reduction(name).gather(bound, memory, place, batch, number == 0)
    return memory, own


def nearby(params, distance=0.01):
    rng = torch.Generator().manual_seed(1)
    return {k: w + distance * torch.randn(w.shape, generator=rng, dtype=w.dtype) for k, w in params.items()}


def flat(slope):
    return torch.cat([s.flatten() for s in slope.values()])


def test_svrg_is_unbiased_over_the_batches_of_many_epochs():
    bound, source, data = regression_model()
    place = bound.init()
    here = nearby(place, 0.1)
    memory, _ = filled("svrg", bound, source, place)
    steps = range(120 * source.steps_per_epoch)
    # Ragged batches stand for all data too, so that every place of an epoch is unbiased alone.
    found = torch.stack([flat(reduction("svrg").slope(bound, memory, here, source.batch(s))[1]) for s in steps])
    error = found.std(0) / math.sqrt(len(found))
    exact = flat(bound.slope(here, data)[1])
    assert float(((found.mean(0) - exact) / error).abs().max()) < 4.5


def test_saga_is_unbiased_exactly_for_every_table():
    """The average over all batches it may pick is the gradient of all data, wherever its rows were filled."""
    bound, source, data = regression_model()
    place, here = bound.init(), nearby(bound.init(), 0.3)
    memory, own = filled("saga", bound, source, place)
    for step in range(4):  # rows of different ages
        reduction("saga").slope(bound, memory, nearby(place, 0.1 * step), own.batch(step))
    found = [reduction("saga").slope(bound, tree.clone(memory), here, batch)[1] for batch in own.sweep()]
    average = torch.stack([flat(s) for s in found]).mean(0)
    torch.testing.assert_close(average, flat(bound.slope(here, data)[1]), rtol=1e-9, atol=1e-9)
    rows = torch.stack([t.flatten(1) for t in [memory["table"]["0.weight"]]])[0]
    torch.testing.assert_close(rows.mean(0), memory["average"]["0.weight"].flatten())


def test_saga_is_the_one_written_again_in_numpy_along_a_walk():
    """Linear regression, where batch b has the gradient A_b w + c_b; its table is kept here as the places that rows are of."""
    truth = linear_regression(n=41, inputs=3, noise=0.5, seed=4)
    bare = pl.BayesianModel(nn.Linear(3, 1, bias=False).double(), pl.likelihoods.Normal(scale=0.5))
    source = make_source(bare, truth.data(), batch_size=8, seed=0, device=torch.device("cpu"))
    bound = bare.bound(num_data=41.0, steps_per_epoch=source.steps_per_epoch)
    walk = np.random.default_rng(0).normal(size=(60, 3)).cumsum(0) * 0.1
    memory, own = filled("saga", bound, source, {"weight": torch.as_tensor(walk[:1])})
    parts = [[t.numpy() for t in placed.batch] for placed in own.sweep()]

    def gradient(b, w):
        x, y, scale = parts[b]
        return ((y[:, 0] - x @ w) * scale) @ x / 0.5**2 - w

    seen = [walk[0]] * len(parts)
    for step, w in enumerate(walk):
        b = int(own.batch(step).place)
        average = sum(gradient(i, place) for i, place in enumerate(seen)) / len(parts)
        expected = gradient(b, w) - gradient(b, seen[b]) + average
        seen[b] = w
        found = reduction("saga").slope(bound, memory, {"weight": torch.as_tensor(w)[None]}, own.batch(step))[1]
        np.testing.assert_allclose(found["weight"][0].numpy(), expected, rtol=1e-9)


def test_the_snapshots_gradient_is_that_of_all_data():
    bound, source, data = regression_model()
    memory, _ = filled("svrg", bound, source, bound.init())
    torch.testing.assert_close(flat(memory["slope"]), flat(bound.slope(bound.init(), data)[1]))


def test_a_batch_of_examples_without_weight_has_no_share_in_the_snapshots_gradient():
    bound, _, (x, y) = regression_model(n=40)
    weights = torch.ones(40, dtype=x.dtype)
    weights[8:24] = 0.0  # two whole batches of a sweep, which takes the data in order
    source = make_source(bound, (x, y, weights), batch_size=8, seed=0, device=torch.device("cpu"))
    bound = bound.bound(num_data=source.num_data)
    memory, _ = filled("svrg", bound, source, bound.init())
    seen = weights > 0
    torch.testing.assert_close(flat(memory["slope"]), flat(bound.slope(bound.init(), (x[seen], y[seen]))[1]))


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_the_variance_falls_tenfold_near_a_place_seen_at_equal_gradient_evaluations(name):
    """A reduced batch of 8 costs up to 3 × 8 gradients (two, and a sweep's share), so it meets plain batches of 24."""
    bound, source, data = regression_model(n=96)
    place = pl.fit(bound, data, pl.MAP(learning_rate=0.02), steps=300, **QUIET).mean
    here = nearby(place)
    exact = flat(bound.slope(here, data)[1])
    memory, own = filled(name, bound, source, place)
    _, plain, _ = regression_model(n=96, batch_size=24)
    epochs = 20

    def spread(slopes):
        return float(torch.stack([(flat(s) - exact).square().sum() for s in slopes]).mean())

    steps = range(epochs * own.steps_per_epoch)
    reduced = spread(reduction(name).slope(bound, tree.clone(memory), here, own.batch(s))[1] for s in steps)
    usual = spread(bound.slope(here, plain.batch(s))[1] for s in range(epochs * plain.steps_per_epoch))
    assert usual > 10 * reduced


@pytest.mark.parametrize("kind", ["batch norm", "dropout"])
def test_variance_reduction_refuses_a_log_joint_that_is_no_sum_over_examples(kind):
    method = pl.SGHMC(variance_reduction="svrg")
    with pytest.raises(pl.NotSupported, match="sum over examples"):
        pl.fit(model(NETWORKS[kind]()), blobs(), method, steps=4, **QUIET)


def test_variance_reduction_refuses_what_it_cannot_be_right_about():
    method = pl.SGHMC(variance_reduction="svrg")
    for name in ("svrg", "saga"):
        with pytest.raises(pl.NotSupported, match="LogDensity"):
            reduced = pl.SGHMC(variance_reduction=name)
            pl.fit(normal_target(torch.zeros(2), torch.eye(2)), None, reduced, steps=4, **QUIET)
    with pytest.raises(pl.NotSupported, match="augment"):
        pl.fit(model(), blobs(), method, steps=4, augment=lambda x: x, **QUIET)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*blobs()), batch_size=4)
    with pytest.raises(pl.NotSupported, match="tensors"):
        pl.fit(model(), loader, pl.SGHMC(variance_reduction="saga"), steps=4, **QUIET)


def test_a_table_that_does_not_fit_is_refused_with_its_bytes(monkeypatch):
    monkeypatch.setattr("plausible.inference.mcmc.variance_reduction.TABLE_BUDGET", 800)
    with pytest.raises(pl.NotSupported, match="4 gradients of 51 weights would take 816 bytes, more than 800"):
        pl.fit(model(), blobs(), pl.SGHMC(variance_reduction="saga"), steps=4, batch_size=16, **QUIET)


def test_fit_many_sweeps_every_data_set_for_itself():
    x, y = blobs()
    sets = [(x, y), (x.flip(0) * 1.5, y)]
    settings = {"steps": 12, "batch_size": 16, **QUIET}
    for name in ("svrg", "saga"):
        method = pl.SGHMC(step_size=0.02, variance_reduction=name)
        together = pl.fit_many(model(), sets, method, seed=[3, 4], vectorise=True, **settings)
        for data, seed, found in zip(sets, (3, 4), together, strict=True):
            alone = pl.fit(model(), data, method, seed=seed, **settings)
            for k, v in alone.draws.items():
                torch.testing.assert_close(found.draws[k], v, rtol=1e-4, atol=1e-5)


# --- cycles ---


def test_draws_come_from_sampling_phases_only_and_spread_to_the_ends_of_cycles():
    method = pl.CyclicalSGMCMC(base=pl.SGLD(step_size=0.1), cycles=4, exploration=0.75, samples_per_cycle=3)
    kept = list(method.kept_steps(400))
    assert kept == [c * 100 + k for c in range(4) for k in (83, 91, 99)]
    assert all((k % 100) / 100 >= 0.75 for k in kept)
    uneven = list(method.kept_steps(50))  # cycles of 12 and 13 steps
    assert len(uneven) == 12 and all(4 * k % 50 / 50 >= 0.75 for k in uneven)


@pytest.mark.parametrize("base", [pl.SGLD(step_size=0.1), pl.SGHMC(step_size=0.1, friction=1.0)], ids=["sgld", "sghmc"])
def test_there_is_no_noise_while_a_cycle_explores_and_the_samplers_noise_after(base):
    """On a flat density all movement is noise: its variance after each step is known."""
    seen = []

    class Flat(pl.LogDensity):
        def slope(self, params, batch=None):
            seen.append(params["w"].clone())
            return super().slope(params, batch)

    target = Flat(lambda p: 0.0 * p["w"].sum(), {"w": torch.zeros(20_000)})
    method = pl.CyclicalSGMCMC(base=base, cycles=2, exploration=0.5, samples_per_cycle=2)
    pl.fit(target, None, method, steps=40, seed=2, **QUIET)
    moved = [float((after - before).square().mean()) for before, after in zip(seen, seen[1:], strict=False)]
    if isinstance(base, pl.SGLD):
        for t, variance in enumerate(moved):
            r = t % 20 / 20
            rate = 0.1 * 0.5 * (1 + math.cos(math.pi * r))
            assert variance == pytest.approx(0.0 if r < 0.5 else 2 * rate, rel=0.05)
    else:
        assert all(v == 0 for v in moved[:10]) and all(v > 0 for v in moved[10:20])
        assert all(after < before for before, after in zip(moved[20:29], moved[21:30], strict=True))  # friction alone


def test_a_cyclical_step_size_is_a_cosine_of_the_cycle():
    """With a constant slope and no noise, the way made is the step size."""
    seen = []

    class Slope(pl.LogDensity):
        def slope(self, params, batch=None):
            seen.append(float(params["w"]))
            return super().slope(params, batch)

    target = Slope(lambda p: p["w"].sum(), {"w": torch.zeros((), dtype=torch.float64)})
    method = pl.CyclicalSGMCMC(base=pl.SGLD(step_size=0.2), cycles=2, exploration=0.9, samples_per_cycle=1)
    pl.fit(target, None, method, steps=60, seed=2, **QUIET)
    ways = [b - a for a, b in zip(seen, seen[1:], strict=False)]
    for t in [*range(27), *range(30, 57)]:
        assert ways[t] == pytest.approx(0.1 * (1 + math.cos(math.pi * (t % 30) / 30)))


def test_a_run_too_short_for_its_cycles_says_what_it_has_room_for(caplog):
    target = normal_target(torch.zeros(2), torch.eye(2), chains=1)
    with caplog.at_level(logging.WARNING, "plausible"):
        posterior = pl.fit(target, None, pl.CyclicalSGMCMC(), steps=32, **QUIET)
    assert [r.getMessage() for r in caplog.records] == ["32 steps have room for 2 of 4 cycles and 3 draws of each"]
    assert len(posterior) == 6
    with pytest.raises(ValueError, match="2 steps are too few"):
        pl.fit(target, None, pl.CyclicalSGMCMC(), steps=2, **QUIET)


def test_a_base_with_draws_of_its_own_is_refused():
    with pytest.raises(ValueError, match="burn_in"):
        pl.CyclicalSGMCMC(base=pl.SGHMC(burn_in=5))
    with pytest.raises(ValueError, match="base"):
        pl.CyclicalSGMCMC(base=pl.MAP())


# --- settings ---


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (pl.SGLD, {"step_size": 0.0}),
        (pl.SGLD, {"step_size": math.inf}),
        (pl.SGLD, {"burn_in": -1}),
        (pl.SGLD, {"burn_in": 2.5}),
        (pl.SGHMC, {"thin": 0}),
        (pl.SGHMC, {"friction": -1.0}),
        (pl.SGHMC, {"variance_reduction": "sarah"}),
        (pl.SGHMC, {"gradient_noise": -1.0}),
        (pl.SGHMC, {"friction": 2.0, "step_size": 1.0}),
        (pl.CyclicalSGMCMC, {"cycles": 0}),
        (pl.CyclicalSGMCMC, {"exploration": 1.0}),
        (pl.CyclicalSGMCMC, {"samples_per_cycle": 0}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_wrong_settings_are_refused_when_they_are_given(method, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        method(**wrong)


def test_a_chain_that_leaves_all_numbers_is_stopped_with_advice_that_its_sampler_can_take():
    with pytest.raises(FloatingPointError, match="try a tenth of the learning rate or step size") as caught:
        pl.fit(model(), blobs(), pl.SGLD(step_size=1e20), steps=9, **QUIET)
    assert "clip_norm" not in str(caught.value)
    with pytest.raises(FloatingPointError, match="or clip_norm"):
        pl.fit(model(), blobs(), pl.MAP(optimizer="sgd", learning_rate=1e20), steps=9, **QUIET)


def test_every_thin_th_draw_after_burn_in_is_kept_and_two_fifths_are_burn_in():
    every = pl.fit(model(), blobs(), pl.SGLD(burn_in=10), steps=25, **QUIET)
    third = pl.fit(model(), blobs(), pl.SGLD(burn_in=10, thin=3, step_size=None), steps=25, **QUIET)
    assert len(every) == 15 and len(third) == 5
    assert torch.equal(third.draws["0.weight"], every.draws["0.weight"][2::3])
    assert len(pl.fit(model(), blobs(), pl.SGHMC(), steps=25, **QUIET)) == 15
    with pytest.raises(ValueError, match="burn-in of 25"):
        pl.fit(model(), blobs(), pl.SGLD(burn_in=25), steps=25, **QUIET)


def test_step_sizes_follow_from_the_data_the_temperature_and_the_number_of_steps():
    def found(method, steps, **settings):
        return method.resolved(model(mlp(), **settings).bound(num_data=400.0), steps)

    assert found(pl.SGLD(), 8000).step_size == pytest.approx(1 / 20 / 400)
    assert found(pl.SGLD(), 10, temperature=0.5).step_size == pytest.approx(0.1 / 800)
    hot = found(pl.SGHMC(), 8000)
    assert hot.step_size == pytest.approx(2 / 20 / 20) and hot.friction * hot.step_size == pytest.approx(0.1)


# --- thermometers in words ---


def test_diagnostics_say_how_warm_a_chain_was():
    target = normal_target(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), chains=20)
    good = pl.fit(target, None, pl.SGHMC(step_size=0.1, friction=1.0, burn_in=100), steps=500, **QUIET).diagnostics()
    assert any("kinetic temperature" in m and "configurational" in m for m in good.messages)
    assert not any("too warm" in m or "too cold" in m for m in good.messages)
    assert good.table["kinetic_temperature"]["mean"] == pytest.approx(1.05, abs=0.05)
    coarse = pl.fit(target, None, pl.SGLD(step_size=1.2, burn_in=100), steps=500, **QUIET).diagnostics()
    assert not coarse.ok and any("too warm" in m and "step_size" in m for m in coarse.messages)
