"""The seeds of a row are kept one by one, and processes may share them."""

import json
from dataclasses import dataclass, replace

import pytest
from tests.experiments.toy_study import STUDY, ToyRow

from plausible.experiments.reproduce import run_rows
from plausible.experiments.results import FIELDS, Store
from plausible.experiments.study import Outcome

RAN: list[int] = []  # the seeds, in the order in which they ran


@dataclass(frozen=True, kw_only=True)
class SeededRow(ToyRow):
    seeds: int = 3


def run_seed(row, root, seed):
    RAN.append(seed)
    scores = {"nll": [row.offset + seed], "accuracy": [0.5]}
    return Outcome(scores=scores, seeds=[seed], device="none", details={"drawn": [f"seed {seed}"]})


A = SeededRow(name="a", epochs=50)
SEEDED = replace(STUDY, rows=(A,), published={}, run=None, run_seed=run_seed)


@pytest.fixture(autouse=True)
def nothing_ran():
    RAN.clear()


def files(store):
    return sorted(path.relative_to(store.folder).as_posix() for path in store.folder.rglob("*") if path.is_file())


def run(store, row=A, study=SEEDED, **more):
    return list(run_rows(study, [row], store, **more))


def test_a_row_is_the_sum_of_its_seeds(tmp_path):
    store = Store(tmp_path, SEEDED)
    (result,) = run(store, command="plausible reproduce toy")
    assert RAN == [0, 1, 2] and result.record["seeds"] == [0, 1, 2]
    assert result.record["scores"] == {"nll": [0.0, 1.0, 2.0], "accuracy": [0.5, 0.5, 0.5]}
    assert result.record["details"] == {"drawn": ["seed 0"]}
    assert files(store) == ["a.json"] and not (store.folder / "seeds").exists()
    assert set(json.loads(store.path(A).read_text())) == {*FIELDS, "details"}


def test_a_run_that_is_stopped_keeps_the_seeds_that_it_finished(tmp_path):
    def stopped(row, root, seed):
        if seed == 2:
            raise KeyboardInterrupt
        return run_seed(row, root, seed)

    store = Store(tmp_path, SEEDED)
    with pytest.raises(KeyboardInterrupt):
        run(store, study=replace(SEEDED, run_seed=stopped))
    assert files(store) == ["seeds/a.0.json", "seeds/a.1.json"]
    assert store.read_all() == []  # two of three are no row
    told = []
    (result,) = run(store, tell=told.append)
    assert RAN == [0, 1, 2] and result.record["scores"]["nll"] == [0.0, 1.0, 2.0]
    assert "seed 0 of 3: read" in told[0] and "seed 2 of 3: 50 epochs" in told[2]


@pytest.mark.parametrize("order", [([0], [1], [2]), ([2], [0, 1]), ([1, 2], [0])])
def test_whoever_runs_the_last_seed_finishes_the_row(tmp_path, order):
    store = Store(tmp_path, SEEDED)
    results = [run(store, seeds=seeds) for seeds in order]
    assert [len(found) for found in results] == [*([0] * (len(order) - 1)), 1]
    assert results[-1][0].record["scores"]["nll"] == [0.0, 1.0, 2.0]  # in their order, however they came
    assert sorted(RAN) == [0, 1, 2] and files(store) == ["a.json"]


def test_details_are_joined_as_the_study_says(tmp_path):
    study = replace(SEEDED, join_details=lambda own: {"drawn": [d for one in own for d in one["drawn"]]})
    (result,) = run(Store(tmp_path, study), study=study)
    assert result.record["details"] == {"drawn": ["seed 0", "seed 1", "seed 2"]}


def test_seeds_that_ran_in_several_places_say_so(tmp_path):
    def elsewhere(row, root, seed):
        return replace(run_seed(row, root, seed), device="elsewhere")

    store = Store(tmp_path, SEEDED)
    run(store, seeds=[0, 2])
    (result,) = run(store, study=replace(SEEDED, run_seed=elsewhere))
    assert result.record["device"] == "none and elsewhere"


def test_seeds_of_other_settings_are_not_mixed_in(tmp_path):
    store = Store(tmp_path, SEEDED)
    run(store, seeds=[0, 1])
    changed = replace(A, offset=10.0)
    (result,) = run(store, row=changed)
    assert result.record["scores"]["nll"] == [10.0, 11.0, 12.0] and RAN == [0, 1, 0, 1, 2]


def test_restart_runs_seeds_again(tmp_path):
    store = Store(tmp_path, SEEDED)
    run(store, seeds=[0, 1])
    run(store, restart=True)
    assert RAN == [0, 1, 0, 1, 2]


def test_nothing_is_kept_without_a_store():
    (result,) = run(None)
    assert result.record["seeds"] == [0, 1, 2]


def test_a_seed_that_the_row_has_not_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"seeds of a must be any of 0, 1, 2, got \[1, 3\]"):
        run(Store(tmp_path, SEEDED), seeds=[1, 3])
    assert RAN == []


def test_studies_that_run_rows_whole_have_no_seeds_to_choose(tmp_path):
    with pytest.raises(ValueError, match="rows of toy are run whole"):
        run(Store(tmp_path, STUDY), row=STUDY.rows[0], study=STUDY, seeds=[0])


def test_some_seeds_need_a_store():
    with pytest.raises(ValueError, match="need a store"):
        run(None, seeds=[0])


@pytest.mark.parametrize("both", [{"run": None, "run_seed": None}, {"run": lambda row, root: None}])
def test_a_study_runs_rows_or_seeds(both):
    with pytest.raises(ValueError, match="one of run and run_seed"):
        replace(SEEDED, **both)
