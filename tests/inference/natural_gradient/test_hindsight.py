"""Runs that ended worse than they began, or made no step, and runs that are as they should be."""

import pytest
import torch
from torch import nn

import plausible as pl

QUIET = {"progress": False, "device": "cpu"}


def deep(layers, kind=nn.ReLU):
    torch.manual_seed(0)
    hidden = [part for _ in range(layers - 1) for part in (kind(), nn.Linear(16, 16))]
    network = nn.Sequential(nn.Linear(3, 16), *hidden, kind(), nn.Linear(16, 2))
    x = torch.randn(37, 3, generator=torch.Generator().manual_seed(0))
    return pl.BayesianModel(network, pl.likelihoods.Categorical()), (x, (x[:, 0] > 0).long())


def test_a_run_that_lost_what_there_was_says_so_with_both_numbers():
    model, data = deep(2)
    posterior = pl.fit(model, data, pl.IVON(learning_rate=1000.0, initial_curvature=1.0), steps=100, **QUIET)
    assert -posterior.predict(data[0]).log_prob(data[1]).mean() > 10.0  # it is lost indeed
    told = posterior.diagnostics()
    assert not told.ok
    assert any("outputs of zero have -0.693" in m and "learning_rate=1e+03" in m for m in told.messages)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN(), pl.IVON(), pl.KFAC(), pl.NoisyKFAC(), pl.NaturalGradientVI()])
@pytest.mark.parametrize("steps", [1, 10, 200])
def test_ordinary_runs_are_not_said_to_have_lost_anything(method, steps):
    model, data = deep(1, nn.Tanh)
    told = pl.fit(model, data, method, steps=steps, batch_size=16, num_modes=2, **QUIET).diagnostics()
    assert not any("lost what there was" in m for m in told.messages)


def test_a_network_with_norms_is_judged_with_statistics_of_its_own():
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    _, data = deep(1)
    for modes in (1, 3):
        model = pl.BayesianModel(network, pl.likelihoods.Categorical())
        told = pl.fit(model, data, pl.IVON(), steps=200, num_modes=modes, **QUIET).diagnostics()
        assert not any("lost what there was" in m for m in told.messages)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN(), pl.IVON(), pl.NaturalGradientVI()])
def test_a_run_without_a_step_says_that_there_was_none(method):
    model, data = deep(1, nn.Tanh)
    told = pl.fit(model, data, method, epochs=0, **QUIET).diagnostics()
    (said,) = told.messages
    assert not told.ok and said.startswith("no step was made")
