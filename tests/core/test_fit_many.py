"""Several fits at once: each equals its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.contract_cases import (
    CASES,
    ONE_MODE,
    FunctionalDropout,
    Stop,
    assert_same_bits,
    blobs,
    differ,
    furthest,
    model,
    seeded,
    stop_at,
)

import plausible as pl

X, Y = blobs()
SETS = [(X, Y), (X + 0.3, Y), (X * 1.5, (Y + 1) % 3)]
BASE = pl.MAP(optimizer="sgd", learning_rate=0.05)
RATES = [replace(BASE, learning_rate=rate) for rate in (0.01, 0.05, 0.2)]


def settings(**more):
    return {"steps": 12, "batch_size": 16, "progress": False, "device": "cpu", **more}


def assert_close(found, expected):
    assert furthest(found, expected) < 1e-4


@pytest.mark.parametrize("vectorise", [True, False])
@pytest.mark.parametrize("name", [n for n in ONE_MODE if not CASES[n].rejects])
def test_several_data_sets_give_what_each_gives_alone(name, vectorise):
    method, more = CASES[name].method, settings(steps=20)
    found = pl.fit_many(model(), SETS, method, vectorise=vectorise, **more)
    for posterior, data in zip(found, SETS, strict=True):
        assert_close(posterior, pl.fit(model(), data, method, **more))


@pytest.mark.parametrize("vectorise", [True, False])
def test_several_learning_rates_give_what_each_gives_alone(vectorise):
    found = pl.fit_many(model(), (X, Y), RATES, vectorise=vectorise, **settings())
    assert differ(found[0], found[1])
    for posterior, method in zip(found, RATES, strict=True):
        assert_close(posterior, pl.fit(model(), (X, Y), method, **settings()))


@pytest.mark.parametrize("vectorise", [True, False])
def test_several_seeds_give_what_each_gives_alone(vectorise):
    found = pl.fit_many(model(), (X, Y), BASE, seed=[3, 4, 5], vectorise=vectorise, init="reset", **settings())
    for posterior, seed in zip(found, [3, 4, 5], strict=True):
        assert_close(posterior, pl.fit(model(), (X, Y), BASE, seed=seed, init="reset", **settings()))


def test_several_chains_of_other_data_in_double_precision_give_what_each_gives_alone():
    sets = [(x.double(), y) for x, y in SETS]
    of = model(torch.nn.Linear(2, 3).double())
    method = pl.HMC(step_size=0.1, trajectory_length=0.3, warmup=5)
    for posterior, data in zip(pl.fit_many(of, sets, method, vectorise=True, **settings()), sets, strict=True):
        assert furthest(posterior, pl.fit(of, data, method, **settings())) < 1e-10


def test_data_methods_and_seeds_may_be_lists_together():
    found = pl.fit_many(model(), SETS, RATES, seed=[7, 8, 9], **settings())
    for i, posterior in enumerate(found):
        assert_close(posterior, pl.fit(model(), SETS[i], RATES[i], seed=7 + i, **settings()))


def test_augmentation_is_that_of_each_ones_own_seed():
    def augment(inputs):
        return inputs + 0.5 * torch.randn_like(inputs)

    found = pl.fit_many(model(), (X, Y), BASE, seed=[3, 4], augment=augment, **settings())
    for posterior, seed in zip(found, [3, 4], strict=True):
        assert_close(posterior, pl.fit(model(), (X, Y), BASE, seed=seed, augment=augment, **settings()))


def test_a_network_that_draws_by_itself_draws_by_each_ones_own_seed():
    of = model(seeded(FunctionalDropout))
    found = pl.fit_many(of, (X, Y), BASE, seed=[3, 4], **settings())
    for posterior, seed in zip(found, [3, 4], strict=True):
        assert_same_bits(posterior, pl.fit(of, (X, Y), BASE, seed=seed, **settings()))


def test_batch_norm_statistics_are_each_ones_own():
    of = model(seeded(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))))
    for posterior, (x, _) in zip(pl.fit_many(of, SETS, BASE, **settings()), SETS, strict=True):
        torch.testing.assert_close(posterior.bank["0.running_mean"][0], x.mean(0), rtol=1e-4, atol=1e-4)


def test_a_run_of_several_resumes_to_the_same_bits(tmp_path):
    setting = pl.Checkpoint(tmp_path / "a", every_steps=5)
    with pytest.raises(Stop):
        pl.fit_many(model(), SETS, RATES, checkpoint=setting, callbacks=[stop_at(7)], **settings())
    resumed = pl.fit_many(model(), SETS, RATES, checkpoint=setting, resume=True, **settings())
    for a, b in zip(resumed, pl.fit_many(model(), SETS, RATES, **settings()), strict=True):
        assert_same_bits(a, b)


def test_ensembles_are_refused_with_the_way_out():
    with pytest.raises(pl.NotSupported, match="use fit"):
        pl.fit_many(model(), SETS, pl.DeepEnsemble(members=2), **settings())


IN_FLOAT64 = {
    "MAP": [pl.MAP(learning_rate=0.1), pl.MAP(learning_rate=0.03)],
    "SWAG's scale": [pl.SWAG(rank=3, scale=0.5), pl.SWAG(rank=3, scale=0.7)],
    "HMC's trajectory": [pl.HMC(trajectory_length=0.5), pl.HMC(trajectory_length=1.3)],
    "HMC's trajectory and mass": [pl.HMC(trajectory_length=0.5, warmup=22), pl.HMC(trajectory_length=1.3, warmup=22)],
    "HMC's step": [pl.HMC(step_size=0.1), pl.HMC(step_size=0.3)],
}


@pytest.mark.parametrize("vectorise", [True, False])
@pytest.mark.parametrize("methods", IN_FLOAT64.values(), ids=IN_FLOAT64)
def test_a_method_number_of_ones_own_is_used_to_all_digits_and_at_every_step(methods, vectorise):
    more = settings(steps=30, compile=False)
    of = pl.BayesianModel(seeded(lambda: torch.nn.Linear(2, 3)).double(), pl.likelihoods.Categorical())
    found = pl.fit_many(of, (X.double(), Y), methods, vectorise=vectorise, **more)
    for posterior, method in zip(found, methods, strict=True):
        assert furthest(posterior, pl.fit(of, (X.double(), Y), method, **more)) < 1e-8


@pytest.mark.parametrize("name", ["start", "swag_learning_rate"])
def test_methods_whose_numbers_change_the_course_of_the_run_are_refused(name):
    methods = [pl.SWAG(rank=3, **{name: value}) for value in (0.2, 0.5)]
    with pytest.raises(ValueError, match=f"{name} of SWAG changes its schedule.*call fit for each"):
        pl.fit_many(model(), (X, Y), methods, **settings(steps=40))
