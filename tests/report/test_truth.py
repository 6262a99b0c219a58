"""Distances from the truth against integrals by hand, and what is said of chains that are not the truth yet."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn

import plausible as pl
from plausible.core.predictive import Predictive
from plausible.datasets import Dataset
from plausible.report.truth import density_distance, distances, judged

NORMAL = pl.likelihoods.Normal(scale=0.5)


def of_means(*means):
    """The prediction of one number by several equally likely networks."""
    return Predictive(torch.tensor(means, dtype=torch.float64).reshape(-1, 1, 1), NORMAL)


def density(*means):
    return lambda y: sum(stats.norm.pdf(y, m, 0.5) for m in means) / len(means)


def test_total_variation_of_densities_is_the_integral():
    p, q = (0.0, 1.0), (0.2, -0.4, 3.0)
    exact = 0.5 * integrate.quad(lambda y: abs(density(*p)(y) - density(*q)(y)), -10, 12, limit=500)[0]
    assert float(density_distance(of_means(*p), of_means(*q))) == pytest.approx(exact, abs=2e-3)
    assert float(density_distance(of_means(*p), of_means(*p))) == 0.0


def test_far_and_narrow_densities_are_a_whole_apart():
    narrow = Predictive(torch.tensor([[[50.0]]], dtype=torch.float64), pl.likelihoods.Normal(scale=1e-3))
    assert float(density_distance(narrow, of_means(0.0))) == pytest.approx(1.0, abs=1e-6)


def test_a_single_network_has_none_of_the_truths_spread_between_classes():
    logits = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]], dtype=torch.float64)  # two networks, one example
    truth, point = (Predictive(part, pl.likelihoods.Categorical()) for part in (logits, logits[:1]))
    found = distances(point, truth)
    first, both = torch.softmax(logits[0, 0], 0), torch.softmax(logits, 2)[:, 0].mean(0)
    assert found["spread"] == pytest.approx(1.0)
    assert found["agreement"] == 0.0  # the first says class 1, both together class 0
    assert found["total_variation"] == pytest.approx(float(0.5 * (first - both).abs().sum()))
    assert distances(truth, truth) == {"agreement": 1.0, "total_variation": 0.0, "spread": 0.0}


def chains(shift, draws=400, diverged=0):
    model = pl.BayesianModel(nn.Linear(1, 1), NORMAL)
    rng = torch.Generator().manual_seed(0)

    def chain(number):
        drawn = {k: torch.randn(draws, *v.shape, generator=rng) + shift * number for k, v in model.init().items()}
        divergent = torch.arange(draws) < diverged
        return pl.posteriors.Samples(model, drawn, {"divergent": divergent.float()})

    return pl.mixture([chain(number) for number in range(4)])


def test_chains_that_agree_are_verified_and_others_are_not():
    x = torch.linspace(-1, 1, 9)[:, None]
    fine, words = judged(chains(0.0), x)
    assert fine and "100%" in words
    fine, words = judged(chains(2.0), x)
    assert not fine and "not the truth yet" in words


def test_chains_that_diverge_often_are_not_verified_however_well_they_agree():
    x = torch.linspace(-1, 1, 9)[:, None]
    fine, words = judged(chains(0.0, diverged=2), x)
    assert fine and "8 divergent transitions" in words
    fine, words = judged(chains(0.0, diverged=20), x)
    assert not fine and "80 divergent transitions" in words and "--truth-steps" in words


def test_chains_of_three_draws_are_not_verified():
    fine, words = judged(chains(0.0, draws=3), torch.linspace(-1, 1, 9)[:, None])
    assert not fine and "0% of the predictions" in words


def test_chains_whose_predictions_never_change_are_not_verified():
    still = chains(0.0)
    for chain in still.components:
        chain.draws = {k: torch.zeros_like(w) for k, w in chain.draws.items()}
    fine, words = judged(still, torch.linspace(-1, 1, 9)[:, None])
    assert not fine and "0% of the predictions" in words


def line():
    rng = torch.Generator().manual_seed(1)
    x = torch.linspace(-1, 1, 40)[:, None]
    y = 2 * x + 0.5 * torch.randn(40, 1, generator=rng)
    return Dataset(name="line", task="regression", x_train=x[::2], y_train=y[::2], x_test=x[1::2], y_test=y[1::2])


@pytest.mark.slow
def test_compare_holds_methods_against_the_truth():
    model = pl.BayesianModel(nn.Linear(1, 1), pl.likelihoods.Normal(scale=0.5), prior=pl.priors.Normal(scale=1.0))
    methods = {
        "exact": pl.Laplace(structure="full", base=pl.MAP(learning_rate=0.05)),
        "point": pl.MAP(learning_rate=0.05),
    }
    found = pl.compare(line(), methods, model=model, seeds=1, epochs=300, truth="hmc", truth_steps=600, progress=False)
    rows = found.rows
    assert found.truth is not None and found.truth.verified
    # Laplace is exact on a linear model, so it is as close as chains of this length can tell; a point is not.
    assert rows["exact"]["total_variation"].mean < 0.02 < rows["point"]["total_variation"].mean
    assert rows["exact"]["spread"].mean < 0.02 < rows["point"]["spread"].mean
    assert "hmc (truth)" in rows and any("effective draws" in note for note in found.notes)
    assert not any(note.startswith("hmc (truth)") for note in found.notes)  # whose length is no matter of epochs
    assert "TV" in str(found)
    assert not math.isnan(rows["hmc (truth)"]["total_variation"].mean)


def test_a_truth_that_is_no_exact_sampler_is_refused():
    with pytest.raises(ValueError, match="truth must be any of hmc"):
        pl.compare(line(), {"map": pl.MAP()}, seeds=1, truth="map", progress=False)
