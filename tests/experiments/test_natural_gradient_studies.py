"""The studies of natural-gradient methods: at toy size, their set-up, and their stored pages."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.experiments import ivon_fashion, registry, tables, vogn_cifar10, vogn_continual, vogn_momentum_batchnorm
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Store
from plausible.experiments.vogn_cifar10_pictures import scorecard

ROOT = Path(__file__).parents[2]
STUDIES = ["vogn-2d", "vogn-cifar10", "vogn-momentum-batchnorm", "vogn-continual", "ivon-fashion"]


def toys(name, rows, root, tmp_path):
    study = registry.load(name)
    chosen = [study.toy(row) for row in study.rows if rows is None or row.name in rows]
    found = list(run_rows(study, chosen, None, root=root))
    assert all(set(result.scores) == set(study.columns) for result in found)
    finished = {result.row.name: result for result in found}
    for picture in study.pictures:
        if set(picture.needs) <= set(finished):
            picture.draw(finished, tmp_path / f"{picture.name}.png")
            assert (tmp_path / f"{picture.name}.png").stat().st_size > 1000
    return finished


def test_the_plane_runs_at_toy_size_and_draws_its_boundaries(tmp_path):
    toys("vogn-2d", None, None, tmp_path)
    assert (tmp_path / "boundaries.png").is_file()


def test_tasks_in_turn_run_at_toy_size(made_up_digits, tmp_path):
    found = toys("vogn-continual", None, made_up_digits, tmp_path)
    assert all(len(r.record["details"]["after"][0]) == 2 for r in found.values())


def test_fashion_runs_at_toy_size(data_dir, tmp_path):
    toys("ivon-fashion", None, data_dir, tmp_path)
    assert sum(w.numel() for w in ivon_fashion.LeNet().parameters()) == 44_426


def test_photographs_run_at_toy_size(data_dir, tmp_path):
    found = toys("vogn-cifar10", ["lenet5-adam", "lenet5-vogn", "lenet5-mc-dropout"], data_dir, tmp_path)
    assert sum(scorecard(found).values()) >= 3
    assert (tmp_path / "scorecard.png").is_file()


def test_the_ablation_has_norms_momentum_and_damping_where_its_rows_say():
    rows = {row.name: row for row in vogn_momentum_batchnorm.STUDY.rows}
    is_norm = lambda module: isinstance(module, torch.nn.BatchNorm2d)  # noqa: E731
    for name, norms, momentum in (("both", 20, 0.9), ("momentum", 0, 0.9), ("batch-norm", 20, 0.0), ("plain", 0, 0.0)):
        for row, damping, rate in ((rows.pop(name), 1e-3, 1e-4), (rows.pop(f"{name}-damped"), 1e-2, 1e-3)):
            assert sum(map(is_norm, vogn_momentum_batchnorm.network_for(row).modules())) == norms
            assert (row.momentum, row.damping, row.rate) == (momentum, damping, rate)
    assert not rows


def test_the_settings_are_the_published_ones():
    rows = {row.name: row for row in vogn_cifar10.STUDY.rows}
    vogn = vogn_cifar10.method_for(rows["alexnet-vogn"])
    assert (vogn.learning_rate, vogn.momentum, vogn.damping, vogn.augmentation_factor) == (1e-4, 0.9, 1e-3, 10)
    network = vogn_cifar10.SETTINGS["resnet18"].make()
    assert rows["resnet18-vogn"].precision == 50 and rows["lenet5-adam"].precision == 500  # a decay of .01 of 50,000
    prior = vogn_cifar10.normal_but_on_norms(network, 50.0)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=prior)
    weights = model.init()
    first = {**weights, "head.weight": weights["head.weight"] + 1.0}
    norm = {**weights, "trunk.0.1.bias": weights["trunk.0.1.bias"] + 1.0}
    at = model.log_prior(weights)
    assert float(model.log_prior(norm) - at) == 0.0 and float(model.log_prior(first) - at) < -1000


def test_images_are_counted_as_often_as_the_row_says_and_the_prior_once():
    network = vogn_cifar10.SETTINGS["lenet5"].make().double()
    row = replace(vogn_cifar10.STUDY.chosen(["lenet5-noisy-kfac"])[0], factor=10.0, precision=7.0)
    model = vogn_cifar10.model_for(row, network)
    plain = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=7.0**-0.5))
    batch = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.arange(4)
    here, there = model.init(), {k: w + 0.01 * torch.randn_like(w) for k, w in model.init().items()}
    wanted = [10 * plain.log_likelihood(at, batch) + plain.log_prior(at) for at in (here, there)]
    found = [model.log_joint(at, batch, num_data=4) for at in (here, there)]
    torch.testing.assert_close(found[1] - found[0], wanted[1] - wanted[0])
    counted = replace(row, method="vogn", rate=1e-3)  # which has its own ρ
    assert vogn_cifar10.model_for(counted, network).temperature == 1.0
    assert vogn_cifar10.method_for(counted).augmentation_factor == 10.0


def test_a_task_is_learned_under_the_posterior_of_the_last(made_up_digits):
    row = replace(
        vogn_continual.toy(vogn_continual.VOGN), method="ewc", epochs=20, hidden=(20,), limit=None, prior_scale=0.1
    )
    parts = vogn_continual._load(None, made_up_digits)
    held = vogn_continual._accuracies(row, 0, *parts)
    tuned = vogn_continual._accuracies(replace(row, method="fine-tuning"), 0, *parts)
    assert held[1][1] > 90 and tuned[1][1] > 90  # the second task is learned
    assert held[1][0] > tuned[1][0] + 50  # and only a prior keeps the first


def test_ewc_counts_what_a_task_added_by_its_weight_and_what_came_before_once():
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=1.0))
    known = lambda p: pl.posteriors.Diagonal(  # noqa: E731
        model, model.init(), {k: torch.full_like(w, p**-0.5) for k, w in model.init().items()}
    )
    row = replace(vogn_continual.VOGN, prior_scale=0.5, fisher_weight=10.0)
    first = vogn_continual._weighted(known(7.0), pl.priors.Normal(scale=0.5), row)
    second = vogn_continual._weighted(known(36.0), first, row)
    for k in model.init():
        torch.testing.assert_close(first.scale[k].pow(-2), torch.full_like(first.scale[k], 4.0 + 10 * 3.0))
        torch.testing.assert_close(second.scale[k].pow(-2), torch.full_like(first.scale[k], 34.0 + 10 * 2.0))


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_is_what_the_stored_results_render(name):
    study = registry.load(name)
    results = Store(ROOT / "results", study).read_all()
    page = ROOT / "docs" / "studies" / f"{name}.md"
    assert page.read_text() == tables.page(study, results, picture_name(study))
