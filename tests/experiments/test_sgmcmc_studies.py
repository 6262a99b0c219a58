"""The studies of stochastic-gradient samplers: at toy size, their set-up, and their stored pages."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.experiments.made_up_sets import write_uci_sets

from plausible.experiments import csgmcmc_25gaussians as gaussians
from plausible.experiments import registry, tables
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Store

ROOT = Path(__file__).parents[2]
STORED = ["csgmcmc-25gaussians", "sghmc-variance-reduction"]


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    """A data set in the published format: y = 3 + 10 x₀ with noise 2."""
    return write_uci_sets(tmp_path_factory.mktemp("data"), ["concrete"])


@pytest.mark.parametrize("name", STORED)
def test_a_study_runs_at_toy_size_and_draws_its_picture(name, made_up_data, tmp_path):
    study = registry.load(name)
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None, root=made_up_data))
    assert [result.row.name for result in found] == [row.name for row in study.rows]
    assert all(result.repetitions == 2 and set(result.scores) == set(study.columns) for result in found)
    (picture,) = study.pictures
    picture.draw({result.row.name: result for result in found}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_the_mnist_study_runs_at_toy_size(data_dir):
    study = registry.load("sgld-mnist")
    for result in run_rows(study, [study.toy(row) for row in study.rows], None, root=data_dir):
        assert 0 <= result.scores["error"].mean <= 100 and result.scores["log_likelihood"].mean < 0


def test_the_gradient_of_the_mixture_is_its_own_with_the_stated_noise():
    points = torch.tensor([[0.1, -0.2]]).double().expand(20_000, 2)
    target = gaussians.NoisyMixture(points, 1.0)
    key = torch.tensor([1, 2], dtype=torch.int32)
    noisy = target._direct(target.objective, {"x": points}, None, key)[1]["x"]
    exact = target._direct(target.objective, {"x": points}, None, None)[1]["x"]
    # By far the nearest centre is the origin, so the slope is that of its normal alone: −x / 0.03.
    torch.testing.assert_close(exact, -points / 0.03, rtol=1e-6, atol=1e-6)
    gap = noisy - exact
    assert float(gap.mean().abs()) < 0.03 and abs(float(gap.var()) - 1) < 0.04


def test_chains_in_one_tensor_are_the_chains_that_run_alone():
    """A row's law must not depend on its neighbours: their gradients, at least, do not."""
    rows = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double()
    target = gaussians.NoisyMixture(rows, 0.0)
    together = target.slope({"x": rows})[1]["x"]
    apart = [gaussians.NoisyMixture(row[None], 0.0).slope({"x": row[None]})[1]["x"][0] for row in rows]
    torch.testing.assert_close(together, torch.stack(apart))


def test_the_samplers_are_the_published_ones():
    """Noise √(2η(1 − η/2)), η = 0.043 (t − 500)^−0.55; thirty cosine cycles from 0.07 whose first 50 steps are dropped."""
    sgld, cyclical = gaussians.ROWS[0], gaussians.ROWS[1]
    method = gaussians.method_of(sgld)
    steps = torch.tensor([0.0, 500.0, 1500.0]).double()
    torch.testing.assert_close(
        method.step_size * method.schedule(steps / 50_000), 0.043 * torch.tensor([1.0, 1.0, 1000**-0.55]).double()
    )
    assert method.gradient_noise == 1.0
    kept = list(gaussians.method_of(cyclical).kept_steps(50_000))
    length = 50_000 / 30
    assert min(t % length for t in kept) >= 49 and len(kept) >= 30 * (length - 53)
    assert gaussians.method_of(cyclical).base.step_size == 0.07


@pytest.mark.parametrize("name", STORED)
def test_the_page_is_what_the_stored_results_render(name):
    study = registry.load(name)
    results = Store(ROOT / "results", study).read_all()
    assert len(results) >= 2
    folder = ROOT / "docs" / "studies"
    assert (folder / f"{name}.md").read_text() == tables.page(study, results, picture_name(study))
    assert (folder / picture_name(study)).is_file()


def test_the_stored_chains_found_as_many_modes_as_published():
    found = {r.row.name: r.record["scores"] for r in Store(ROOT / "results", gaussians.STUDY).read_all()}
    median = {name: [statistics.median(scores[k]) for k in ("one", "four")] for name, scores in found.items()}
    assert median["cyclical-sgld"][0] >= 17 and median["cyclical-sgld"][1] >= 24
    assert median["sgld"][0] <= 2 and median["sgld"][1] <= 6
    assert all(len(scores["one"]) == 100 for scores in found.values())


def test_the_stored_svrg_cuts_the_variance_tenfold():
    study = registry.load("sghmc-variance-reduction")
    found = {r.row.name: r.scores for r in Store(ROOT / "results", study).read_all()}
    # SAGA's row does not reach that; its page says what was measured.
    assert found["svrg"]["variance"].mean < 0.1 * found["plain"]["variance"].mean


def test_svrg_makes_a_third_of_the_steps():
    plain, svrg, saga = registry.load("sghmc-variance-reduction").rows
    assert (plain.cost, svrg.cost, saga.cost) == (1.0, 3.0, 1.0)
    assert replace(plain, name="svrg", reduced="svrg") == svrg
