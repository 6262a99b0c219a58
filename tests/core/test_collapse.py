"""Prior scales that have collapsed, and posteriors that a flat prior leaves improper, are told of."""

import logging

import pytest
import torch
from scipy import stats
from torch import nn

import plausible as pl
from plausible.core.collapse import collapsed_scales


def model(prior, network=None):
    return pl.BayesianModel(network or nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.1), prior=prior)


def around(m, log_scale, spread=1.0):
    mean = {k: torch.full_like(v, log_scale) if k.startswith("prior.") else v for k, v in m.init().items()}
    return pl.posteriors.Diagonal(m, mean, {k: torch.full_like(v, spread) for k, v in m.start.items()})


@pytest.mark.parametrize(
    ("hyperprior", "median"),
    [
        (pl.hyperpriors.HalfNormal(2.0), stats.halfnorm(scale=2.0).median()),
        (pl.hyperpriors.HalfCauchy(0.3), stats.halfcauchy(scale=0.3).median()),
        (pl.hyperpriors.LogNormal(-1.0, 0.5), stats.lognorm(0.5, scale=2.718281828459045**-1).median()),
        (pl.hyperpriors.InverseGamma(1.5, 0.4), stats.invgamma(1.5, scale=0.4).median() ** 0.5),
    ],
)
def test_medians_of_hyperpriors_are_scipys(hyperprior, median):
    assert hyperprior.median == pytest.approx(median, rel=1e-9)


def test_the_share_of_the_mass_below_a_thousandth_of_the_median_is_counted():
    m = model(pl.priors.Hierarchical(hyperprior=pl.hyperpriors.HalfCauchy(2.0)))
    centre = float(torch.tensor(2e-3).log()) + 1.0  # one deviation above the limit: 15.9 % are below it
    assert collapsed_scales(around(m, centre), num_samples=4000)["prior.scale"] == pytest.approx(0.159, abs=0.024)


def test_a_collapsed_scale_is_explained_in_the_diagnostics():
    found = around(model(pl.priors.Hierarchical()), -12.0).diagnostics()
    assert not found.ok
    assert "prior.scale has collapsed to zero: 100%" in found.messages[-1]


def test_scales_that_are_small_but_alive_are_not_called_collapsed():
    assert around(model(pl.priors.Hierarchical()), -4.0, 0.1).diagnostics().ok


def test_one_input_that_is_switched_off_is_no_collapse():
    m = model(pl.priors.Hierarchical(per="input"))
    mean = {**m.init(), "prior.scale": torch.tensor([[0.0, -15.0, -15.0]])}
    assert pl.posteriors.Delta(m, mean).diagnostics().ok


@pytest.mark.parametrize(("log_scale", "ok"), [(0.0, True), (-15.0, False)])
def test_scales_under_masks_that_are_none_of_weights_are_judged_where_they_are(log_scale, ok):
    m = model(pl.priors.Hierarchical(), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)))
    params = {k: torch.full_like(v, log_scale) if k.startswith("prior.") else v for k, v in m.init().items()}
    assert pl.posteriors.Dropout(m, params, {}, "own").diagnostics().ok == ok


def test_models_without_unknown_scales_have_nothing_to_collapse():
    assert collapsed_scales(around(model(pl.priors.Normal()), 0.0)) == {}


@pytest.mark.parametrize(
    ("likelihood", "rows", "word"),
    [
        (pl.likelihoods.Normal(), 3, "determined"),
        (pl.likelihoods.Bernoulli(), 40, "separated"),
        (pl.likelihoods.Normal(), 40, None),
    ],
)
def test_a_flat_prior_that_may_leave_the_posterior_improper_is_told_of_once(caplog, likelihood, rows, word):
    torch.manual_seed(0)
    m = pl.BayesianModel(nn.Linear(5, 1), likelihood, prior=pl.priors.Flat())
    with caplog.at_level(logging.WARNING, logger="plausible"):
        pl.fit(m, (torch.randn(rows, 5), torch.ones(rows, 1)), pl.MAP(), steps=3, progress=False)
    told = [r.getMessage() for r in caplog.records if "flat prior" in r.getMessage()]
    assert len(told) == (word is not None)
    assert word is None or word in told[0]
