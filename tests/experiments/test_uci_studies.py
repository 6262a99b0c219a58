"""The studies of UCI regression: at toy size, on real data, and their stored pages."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.experiments.made_up_sets import write_uci_sets

import plausible as pl
from plausible.experiments import registry, tables
from plausible.experiments import uci_regression as uci
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Store

ROOT = Path(__file__).parents[2]
NAMES = ["ensemble-uci", "swag-uci"]
SETS = ["bostonHousing", "yacht", "concrete", "kin8nm", "protein-tertiary-structure"]


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    """A data set in the published format, under every name that the studies ask for: y = 3 + 10 x₀ with noise 2."""
    return write_uci_sets(tmp_path_factory.mktemp("data"), SETS)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_at_toy_size(name, made_up_data):
    study = registry.load(name)
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None, root=made_up_data))
    assert [result.row.name for result in found] == ["boston", "yacht", "concrete", "kin8nm", "protein"]
    for result in found:
        assert result.repetitions == 2 and set(result.scores) == set(study.columns)
        assert len(set(result.record["seeds"])) == len(result.record["seeds"])


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_run_finds_the_noise_of_made_up_data(name, made_up_data):
    study = registry.load(name)
    row = replace(study.rows[0], splits=2, epochs=200, full=False)
    (result,) = run_rows(study, [row], None, root=made_up_data)
    nll = result.scores["nll"].mean if "nll" in result.scores else -result.scores["log_likelihood"].mean
    # N(0, 2²) has 2.11 nats; 60 examples for some 250 weights cost more, but far less than knowing only the
    # target's own spread would: N(0, 104) has 3.74.
    assert 1.7 < nll < 3.0
    assert 1.2 < result.scores["rmse"].mean < 5.0


def test_scores_are_those_of_the_mixture_in_the_units_of_the_target(made_up_data):
    row = replace(registry.load("ensemble-uci").rows[0], splits=1, epochs=5)
    (split,) = uci.load_splits(row, made_up_data)
    members = uci.fit_every_split(row, [split], pl.MAP(), members=3)[0]
    found = uci.score(pl.mixture(members), split)
    y = split.y_test.double().numpy() * split.target_scale + split.target_mean
    means, scales = [], []
    for member in members:
        w = {k: v.double().numpy() for k, v in member.mean.items()}
        features = np.maximum(split.x_test.double().numpy() @ w["hidden.weight"].T + w["hidden.bias"], 0)
        means.append((features @ w["mean.weight"].T + w["mean.bias"]) * split.target_scale + split.target_mean)
        scales.append(np.logaddexp(0, features @ w["noise.weight"].T + w["noise.bias"]) * split.target_scale)
    means, scales = np.stack(means), np.stack(scales)
    nll = -np.log(stats.norm(means, scales).pdf(y).mean(0)).mean()
    spread = np.sqrt((scales**2 + means**2).mean(0) - means.mean(0) ** 2)
    assert found["nll"] == pytest.approx(nll, rel=1e-4)
    assert found["gaussian_nll"] == pytest.approx(-stats.norm(means.mean(0), spread).logpdf(y).mean(), rel=1e-4)
    assert found["rmse"] == pytest.approx(np.sqrt(((means.mean(0) - y) ** 2).mean()), rel=1e-4)


def test_the_two_heads_are_one_layer_with_two_outputs():
    network = uci.MeanAndNoise(3, 5)
    plain = pl.networks.MLP(3, (5,), 2)
    first, last = plain.layers[0], plain.layers[2]
    with torch.no_grad():
        first.weight.copy_(network.hidden.weight)
        first.bias.copy_(network.hidden.bias)
        last.weight.copy_(torch.cat([network.mean.weight, network.noise.weight]))
        last.bias.copy_(torch.cat([network.mean.bias, network.noise.bias]))
    x = torch.linspace(-2, 2, 21).reshape(7, 3)
    torch.testing.assert_close(network(x), plain(x))


def test_the_prior_of_each_head_is_its_own():
    row = replace(registry.load("ensemble-uci").rows[0], mean_scale=2.0, noise_scale=0.5, bias_scale=3.0)
    model = uci.model_for(row, inputs=4)
    params = {k: torch.zeros_like(v).double() for k, v in model.init().items()}
    at_zero = model.log_prior(params)
    for name, deviation in {"mean.weight": 2 / 50**0.5, "noise.weight": 0.5 / 50**0.5, "noise.bias": 3.0}.items():
        moved = {**params, name: torch.full_like(params[name], 0.1)}
        lost = float(at_zero - model.log_prior(moved))
        assert lost == pytest.approx(0.5 * params[name].numel() * (0.1 / deviation) ** 2, rel=1e-4)


def test_more_splits_than_there_are_is_an_error_that_names_both(made_up_data):
    row = registry.load("swag-uci").rows[0]
    with pytest.raises(ValueError, match="boston asks for 20 splits, and bostonHousing has 2"):
        uci.load_splits(row, made_up_data)


def test_a_row_loads_the_real_splits(data_dir):
    for row in registry.load("ensemble-uci").rows:
        sets = uci.load_splits(row, data_dir)
        assert len(sets) == (5 if row.name == "protein" else 20)
        assert len({split.x_train.shape for split in sets}) == 1  # or they could not be fitted at once


@pytest.mark.parametrize("name", NAMES)
def test_the_full_rows_train_as_long_as_the_published_ones(name):
    study = registry.load(name)
    for row in study.rows:
        assert row.full
        if row.name in study.published:
            assert row.epochs >= study.published[row.name].epochs


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_a_stored_result_of_its_present_settings(name):
    study = registry.load(name)
    found = Store(ROOT / "results", study).read_all()
    assert [result.row.name for result in found] == [row.name for row in study.rows]
    for result in found:
        assert result.repetitions == result.row.splits


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_what_the_stored_results_render(name):
    study = registry.load(name)
    results = Store(ROOT / "results", study).read_all()
    folder = ROOT / "docs" / "studies"
    assert (folder / f"{name}.md").read_text() == tables.page(study, results, picture_name(study))
    assert (folder / picture_name(study)).is_file()


@pytest.mark.parametrize(("name", "key"), [("ensemble-uci", "nll"), ("swag-uci", "log_likelihood")])
def test_the_stored_results_are_within_two_standard_errors_of_the_published_ones_or_better(name, key):
    from plausible.experiments.study import comparable, standard_errors_better

    study = registry.load(name)
    for result in Store(ROOT / "results", study).read_all():
        published = comparable(result.row, study.published.get(result.row.name))
        if published is not None:
            better = standard_errors_better(result.scores[key], study.columns[key], published.values[key])
            assert math.isfinite(better) and better > -2, result.row.name
