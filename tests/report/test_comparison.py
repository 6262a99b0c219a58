"""Comparing methods over several seeds."""

import dataclasses
import math

import pytest
import torch

import plausible as pl
from plausible.report import comparison, scoring, settings, tables, temperature
from plausible.report.comparison import SCALED
from plausible.report.legend import cautions
from plausible.report.outliers import outliers_of


@pytest.fixture(scope="module")
def moons():
    return pl.compare("moons", ["map", "swag"], seeds=[4, 7], epochs=6, progress=False)


def test_a_row_is_the_mean_and_the_standard_error_over_the_seeds_of_single_fits(moons):
    data = pl.datasets.moons()
    losses = []
    for seed in (4, 7):
        model = settings.model_for(data, settings.SETTINGS["moons"], seed)
        posterior = pl.fit(model, data.train, settings.METHODS["map"], epochs=6, seed=seed, progress=False)
        probs = posterior.predict(data.x_test).probs
        losses.append(torch.nn.functional.nll_loss(probs.log(), data.y_test).item())
    found = moons.rows["map"]["nll"]
    assert found.mean == pytest.approx(sum(losses) / 2, rel=1e-5)
    # Of two numbers the standard error is half their distance.
    assert found.error == pytest.approx(abs(losses[0] - losses[1]) / 2, rel=1e-4)


def test_the_result_has_a_row_and_a_posterior_for_each_method_and_for_temperature_scaling(moons):
    assert list(moons.rows) == list(moons.posteriors) == ["map", SCALED, "swag"]
    assert set(moons.rows["swag"]) == set(moons.columns)
    assert all(row["seconds"].mean > 0 and row["milliseconds"].mean > 0 for row in moons.rows.values())
    text = str(moons)
    assert "AUROC" in text and SCALED in text and "±" in text


def test_one_seed_has_no_standard_error():
    assert math.isnan(scoring.over_seeds([{"nll": 1.0}])["nll"].error)


def test_the_temperature_is_where_the_slope_of_the_loss_vanishes():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=logits / 2.5).sample()  # what is right is less sure than the logits say
    found = temperature.fit_temperature(logits, y)
    rate = torch.tensor(1 / found, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits * rate, y, label_smoothing=1 / 402)
    (slope,) = torch.autograd.grad(loss, rate)
    assert abs(slope.item()) < 1e-6
    assert 1.5 < found < 4.5


def test_examples_that_are_all_right_do_not_ask_for_certainty():
    logits = 3 * torch.nn.functional.one_hot(torch.arange(60) % 3, 3).double()
    found = temperature.fit_temperature(logits, torch.arange(60) % 3)
    # With smoothed labels the best probability of the right class is the label's own, 1 - 2/3 of the smoothing.
    wanted = 1 - (2 / 3) / 62
    assert (logits / found).softmax(1).max().item() == pytest.approx(wanted, rel=1e-5)


def test_temperature_scaling_divides_the_logits_and_changes_no_answer(moons):
    scaled = moons.posteriors[SCALED]
    x = moons.data.x_test
    plain = scaled.posterior.predict(x)
    expected = (plain.outputs[0] / scaled.temperature).softmax(-1)
    assert torch.allclose(scaled.predict(x).probs, expected, atol=1e-6)
    assert torch.equal(scaled.predict(x).probs.argmax(1), plain.probs.argmax(1))


def test_the_temperature_is_fitted_on_examples_that_were_not_trained_on():
    train, validation = temperature.held_out(100, seed=3)
    assert len(validation) == 20
    assert sorted(train.tolist() + validation.tolist()) == list(range(100))


def test_digits_are_trained_without_eight_and_nine_which_are_the_outliers():
    data = settings.SETTINGS["digits"].load()
    outliers, _ = outliers_of(data)
    assert int(data.y_train.max()) == int(data.y_test.max()) == 7 and len(data.classes) == 8
    every = pl.datasets.digits()
    assert len(outliers) + len(data.x_train) + len(data.x_test) == len(every.x_train) + len(every.x_test)


def test_outliers_of_the_plane_are_farther_than_one_from_every_point():
    data = pl.datasets.moons()
    outliers, _ = outliers_of(data)
    known = torch.cat([data.x_train, data.x_test])
    nearest = torch.stack([(known - point).square().sum(1).min().sqrt() for point in outliers])
    assert len(outliers) > 100 and nearest.min() > 1.0


def test_the_outlier_score_compares_entropies():
    data = dataclasses.replace(pl.datasets.moons(), x_test=torch.zeros(2, 2), y_test=torch.tensor([0, 1]))
    sure = pl.Predictive(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), pl.likelihoods.Categorical(), exact=True)
    unsure = pl.Predictive(torch.zeros(1, 3, 2), pl.likelihoods.Categorical(), exact=True)
    assert scoring.scores(sure, data, unsure)["ood"] == 1.0
    assert "ood" not in scoring.scores(sure, data)


def test_the_score_of_a_prediction_that_is_sure_and_wrong_is_large_and_finite():
    data = dataclasses.replace(pl.datasets.moons(), x_test=torch.zeros(2, 2), y_test=torch.tensor([0, 0]))
    sure = pl.Predictive(torch.tensor([[[300.0, 0.0], [0.0, 300.0]]]), pl.likelihoods.Categorical(), exact=True)
    assert sure.probs[1, 0] == 0
    assert scoring.scores(sure, data)["nll"] == pytest.approx(150.0)


def test_methods_of_ones_own_and_ones_own_network_start_from_fresh_weights_for_every_seed():
    data = pl.datasets.diabetes()
    network = torch.nn.Linear(10, 1)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0), prior=pl.priors.Normal(scale=1.0))
    found = pl.compare(data, {"mine": pl.MAP(learning_rate=1e-3)}, model=model, seeds=2, epochs=4, progress=False)
    assert list(found.rows) == ["mine"] and found.rows["mine"]["rmse"].error > 0
    assert "the given network" in found.title


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("moon",), "data must be one of moons"),
        (("moons", ["nonsense"]), r"methods must be any of map.*got \['nonsense'\]"),
        (("moons", []), "methods must be any of"),
    ],
)
def test_what_cannot_be_compared_is_told_with_what_can(arguments, message):
    with pytest.raises(ValueError, match=message):
        pl.compare(*arguments, progress=False)


def test_no_seed_at_all_is_refused():
    with pytest.raises(ValueError, match="seeds must be at least one"):
        pl.compare("moons", ["map"], seeds=0, progress=False)


def test_a_table_of_usual_numbers_fits_into_eighty_characters_with_all_its_digits():
    from io import StringIO

    from rich.console import Console

    estimate = tables.Estimate(0.97342, 0.0123)
    rows = {name: dict.fromkeys(scoring.CLASSIFICATION, estimate) for name in (SCALED, "map")}
    for row in rows.values():
        row.update(seconds=tables.Estimate(19.2, 10.1), milliseconds=tables.Estimate(195.2, 15.1))
    console = Console(width=80, file=StringIO())
    console.print(tables.comparison_table(rows, scoring.CLASSIFICATION))
    words = console.file.getvalue().split()
    assert {"accuracy", "predict", "AUROC", "0.973*", "±0.012", "97.3%*", "±1.2%", "195.2", "±10.1"} <= set(words)


def test_what_runs_unasked_leaves_the_methods_that_see_all_data_at_once_to_small_networks():
    small, none = comparison._methods(None, settings.SETTINGS["moons"], None)
    large, notes = comparison._methods(None, settings.SETTINGS["wine"], None)
    assert list(small) == list(settings.UNASKED) and none == []
    assert set(small) - set(large) == {"hmc"} and "--methods hmc" in notes[0]


def test_a_network_is_surer_far_from_the_moons_than_near_them_and_the_legend_says_so(moons):
    inside, outside = (
        moons.posteriors["map"].predict(x).probs.max(1).values for x in (moons.data.x_test, moons.outliers)
    )
    assert outside.mean() > inside.mean()  # which an AUROC below one half must mean
    assert moons.rows["map"]["ood"].mean < 0.5
    assert any(line.startswith("OOD AUROC below 0.5") for line in cautions(moons))


@pytest.mark.parametrize(
    ("examples", "epochs"),
    [(142, 500), (353, 334), (800, 143), (1154, 100), (3840, 100), (50_000, 7), (1_000_000, 5)],
)
def test_small_sets_get_a_thousand_steps_and_large_ones_three_thousand(examples, epochs):
    assert settings.epochs_for(examples) == epochs


def test_other_epochs_change_the_steps_of_hmc_in_proportion():
    data = pl.datasets.moons()
    usual = settings.SETTINGS["moons"].lasting(data)
    longer = settings.SETTINGS["moons"].lasting(data, 4 * usual.epochs)
    assert usual.epochs == 143 and longer.epochs == 572 and longer.transitions == 4 * usual.transitions
