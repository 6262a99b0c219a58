"""Truths that are kept on disk: found again where nothing has changed, and only there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.experiments.made_up_sets import write_uci_sets

import plausible as pl
from plausible.core.files import container
from plausible.experiments import hmc_truth as study_file
from plausible.experiments import hmc_truth_problem as problem_file
from plausible.experiments import hmc_truth_store as store
from plausible.experiments.hmc_truth_problem import Problem

TINY = Problem(
    data="bostonHousing", hidden=2, splits=2, limit=20, chains=2, transitions=8, trajectory_length=0.1, thin=1
)  # fmt: skip


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    return write_uci_sets(tmp_path_factory.mktemp("data"), ["bostonHousing"], 60, lambda x: np.tanh(x[:, 0]))


@pytest.fixture
def sampled(monkeypatch):
    """How often chains were run; nothing is remembered from one call to the next."""
    runs = []
    real = problem_file._sampled

    def counting(*args):
        runs.append(args)
        return real(*args)

    monkeypatch.setattr(problem_file, "_sampled", counting)
    return runs


def find(problem, root, run, cache):
    problem_file.truths.cache_clear()
    return problem_file.truths(problem, root, run, cache)


def test_a_truth_is_sampled_once_and_read_as_it_was_written(made_up_data, tmp_path, sampled):
    first = find(TINY, made_up_data, 0, tmp_path)
    again = find(TINY, made_up_data, 0, tmp_path)
    assert len(sampled) == 1 and len(again) == len(first) == 2
    (split, _) = problem_file.load_splits(TINY, made_up_data)
    for one, other in zip(first, again, strict=True):
        assert one.mixing == other.mixing and one.predictive.exact == other.predictive.exact
        for part in store.PARTS:
            assert torch.equal(getattr(one.predictive, part), getattr(other.predictive, part))
        assert torch.equal(one.predictive.log_prob(split.y_test), other.predictive.log_prob(split.y_test))
    assert "scale" in again[0].predictive.unknowns  # the noise, which is unknown
    told = problem_file.scored(again[0].predictive, first[0].predictive, split)
    assert told["total_variation"] == told["spread"] == told["centre"] == 0.0


def test_truths_of_other_chains_are_not_taken(made_up_data, tmp_path, sampled, monkeypatch):
    find(TINY, made_up_data, 0, tmp_path)
    find(TINY, made_up_data, 1, tmp_path)
    find(replace(TINY, transitions=9), made_up_data, 0, tmp_path)
    monkeypatch.setattr(pl, "__version__", "0.0.0")
    find(TINY, made_up_data, 0, tmp_path)
    assert len(sampled) == 4
    assert len(list((tmp_path / "hmc-truth").iterdir())) == 4  # none was written over another's


def test_everything_that_leads_chains_elsewhere_is_another_origin(made_up_data, monkeypatch):
    sets, sampler = problem_file.load_splits(TINY, made_up_data), pl.HMC(trajectory_length=0.1)
    model = problem_file.model_of(TINY, sets[0])
    wider = pl.BayesianModel(model.source, model.likelihood, pl.priors.Normal(scale=3.0))
    moved = [replace(sets[0], y_train=sets[0].y_train + 1e-3), *sets[1:]]
    plain = store.origin(sampler, model, sets, {"run": 0})
    others = [
        store.origin(pl.HMC(trajectory_length=0.2), model, sets, {"run": 0}),
        store.origin(pl.NUTS(), model, sets, {"run": 0}),
        store.origin(sampler, wider, sets, {"run": 0}),
        store.origin(sampler, model, moved, {"run": 0}),
        store.origin(sampler, model, sets[:1], {"run": 0}),
        store.origin(sampler, model, sets, {"run": 1}),
    ]
    monkeypatch.setattr(torch, "__version__", "1.0")
    others.append(store.origin(sampler, model, sets, {"run": 0}))
    assert plain == store.origin(sampler, model, sets, {"run": 0}) | {"versions": plain["versions"]}
    paths = {store.path_of(made_up_data, "boston-0", told) for told in (plain, *others)}
    assert len(paths) == 1 + len(others)


def test_a_file_under_the_right_name_but_of_another_origin_is_not_taken(made_up_data, tmp_path, sampled):
    find(TINY, made_up_data, 1, tmp_path)
    (foreign,) = (tmp_path / "hmc-truth").iterdir()
    find(TINY, made_up_data, 0, tmp_path)
    (own,) = [path for path in (tmp_path / "hmc-truth").iterdir() if path != foreign]
    own.write_bytes(foreign.read_bytes())
    find(TINY, made_up_data, 0, tmp_path)
    assert len(sampled) == 3
    assert container.read(own, store.KIND)[1]["origin"]["settings"]["run"] == 0  # and was put right


def test_a_damaged_file_is_replaced(made_up_data, tmp_path, sampled):
    find(TINY, made_up_data, 0, tmp_path)
    (path,) = (tmp_path / "hmc-truth").iterdir()
    mapped, about = container.read(path, store.KIND)
    whole = {name: values.clone() for name, values in mapped.items()}  # in memory: the file is about to be cut
    path.write_bytes(path.read_bytes()[:-8])
    find(TINY, made_up_data, 0, tmp_path)
    assert len(sampled) == 2
    mended, told = container.read(path, store.KIND)
    assert told == about and mended.keys() == whole.keys()
    torch.testing.assert_close(mended, whole, rtol=0.0, atol=0.0)  # the same seeds, the same chains


@pytest.mark.parametrize("full", [False, True])
def test_the_study_keeps_its_truths_and_a_toy_none(full, made_up_data, tmp_path, monkeypatch, sampled):
    monkeypatch.setenv("PLAUSIBLE_CACHE", str(tmp_path))
    (row,) = study_file.STUDY.chosen(["boston-map"])
    small = replace(row, full=full, epochs=2, problem=TINY)
    for _ in range(2):
        problem_file.truths.cache_clear()
        study_file.run(small, made_up_data)
    assert len(sampled) == (1 if full else 2)
    assert (tmp_path / "hmc-truth").exists() == full
    problem_file.truths.cache_clear()
