"""The contract of methods, with a prior whose scales are among the unknowns."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from tests.contract_cases import (
    CASES,
    NETWORKS,
    Stop,
    assert_same_bits,
    blobs,
    data_for,
    differ,
    fit,
    furthest,
    inputs_for,
    mlp,
    model,
    stop_at,
)

import plausible as pl

PRIORS = {
    "HMC": pl.priors.Hierarchical(family=pl.priors.StudentT, per="input"),
    "MAP": pl.priors.Hierarchical(
        family=pl.priors.Laplace, hyperprior=pl.hyperpriors.InverseGamma(2.0, 1.0), per="unit"
    ),
    "SWAG": pl.priors.Hierarchical(hyperprior=pl.hyperpriors.LogNormal()),
}
every_method = pytest.mark.parametrize("name", PRIORS)


def scaled(name, network=None, **settings):
    return model(network, prior=PRIORS[name], **settings)


@every_method
def test_the_same_seed_gives_the_same_posterior_and_another_another(name):
    one = fit(name, scaled(name))
    assert_same_bits(one, fit(name, scaled(name)))
    assert differ(one, fit(name, scaled(name), seed=1))


@pytest.mark.parametrize("kind", ["tied weights", "dict inputs"])
@every_method
def test_a_saved_and_loaded_posterior_predicts_the_same_to_the_bit(name, kind, tmp_path):
    posterior = fit(name, scaled(name, NETWORKS[kind](), temperature=0.5), data_for(kind))
    posterior.save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", NETWORKS[kind]())
    assert_same_bits(posterior, loaded)
    x = inputs_for(kind)
    assert torch.equal(posterior.predict(x, num_samples=8).outputs, loaded.predict(x, num_samples=8).outputs)


@every_method
def test_a_run_that_was_stopped_resumes_to_the_same_bits(name, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    with pytest.raises(Stop):
        fit(name, scaled(name), checkpoint=setting, callbacks=[stop_at(7)])
    assert_same_bits(fit(name, scaled(name), checkpoint=setting, resume=True), fit(name, scaled(name)))


def twin(name, **settings):
    method = CASES[name].method
    method = replace(method, step_size=0.05) if CASES[name].rejects else method
    settings = {"steps": 24, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(scaled(name, mlp(torch.float64)), blobs(dtype=torch.float64), method, **settings)


@every_method
def test_vectorised_modes_equal_looped_ones(name, caplog):
    with caplog.at_level(logging.WARNING, "plausible"):
        together = twin(name, num_modes=3, vectorise=True)
    assert not caplog.records
    assert furthest(together, twin(name, num_modes=3, vectorise=False)) < 1e-10
    x = blobs(dtype=torch.float64)[0]
    assert bool(together.predict(x).probs.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HMC", "MAP"])
def test_a_compiled_run_equals_the_eager_one(name, caplog):
    with caplog.at_level(logging.WARNING, "plausible"):
        compiled = twin(name, compile=True)
    assert not caplog.records
    assert furthest(compiled, twin(name, compile=False)) < 1e-10


@pytest.mark.parametrize("name", ["HMC", "MAP"])
def test_fit_many_equals_one_fit_after_the_other(name):
    method = CASES[name].method
    method = replace(method, step_size=0.05) if CASES[name].rejects else method
    settings = {"steps": 16, "batch_size": 25, "progress": False, "device": "cpu"}
    data = [blobs(dtype=torch.float64), tuple(t.flip(0) for t in blobs(dtype=torch.float64))]
    own = scaled(name, mlp(torch.float64))
    for together, lone in zip(pl.fit_many(own, data, method, **settings), data, strict=True):
        assert furthest(together, pl.fit(own, lone, method, **settings)) < 1e-10


@pytest.mark.parametrize("prior", [pl.priors.Horseshoe(), pl.priors.Correlated()])
def test_convolutions_run_under_priors_of_their_kind_one_and_several_at_a_time(prior):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3)).double()
    own = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=prior)
    data = (torch.randn(12, 1, 4, 4, dtype=torch.float64), torch.arange(12) % 3)
    method = pl.HMC(step_size=0.02, trajectory_length=0.1)
    together, apart = (
        pl.fit(own, data, method, steps=8, num_modes=2, vectorise=v, progress=False) for v in (True, False)
    )
    assert furthest(together, apart) < 1e-10
