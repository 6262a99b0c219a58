"""Results are kept row by row, and read instead of run again."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.experiments.toy_study import CALLS, STUDY, A

from plausible.experiments.reproduce import run_rows
from plausible.experiments.results import FIELDS, Store


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def run_all(store, rows=STUDY.rows, **more):
    return list(run_rows(STUDY, rows, store, **more))


def test_a_result_says_what_was_run_with_what_and_what_it_scored(tmp_path):
    run_all(Store(tmp_path, STUDY), [A], command="plausible reproduce toy")
    record = json.loads((tmp_path / "toy" / "a.json").read_text())
    assert tuple(record) == FIELDS
    assert record["scores"] == {"nll": [1.0, 2.0, 3.0], "accuracy": [0.1, 0.2, 0.3]}
    assert record["settings"] == A.settings() and record["epochs"] == 50 and record["seeds"] == [0, 1, 2]
    assert record["command"] == "plausible reproduce toy" and record["device"] == "none" and record["threads"] >= 1
    assert set(record["versions"]) == {"python", "plausible", "torch", "numpy"} and record["seconds"] >= 0


def test_the_commit_is_that_of_the_repository(tmp_path):
    (result,) = run_all(None, [A])
    folder = Path(__file__).parent
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    expected = told.stdout.strip() if told.returncode == 0 else "no repository"
    assert result.record["commit"].removesuffix(" with changes") == expected


def test_a_finished_row_is_read_and_not_run_again(tmp_path):
    store = Store(tmp_path, STUDY)
    first = run_all(store, STUDY.rows[:2])
    again = run_all(store)
    assert CALLS == ["a", "b", "c"]
    assert [result.record for result in again[:2]] == [result.record for result in first]


def test_a_row_with_other_settings_is_run_again(tmp_path):
    store = Store(tmp_path, STUDY)
    run_all(store)
    changed = [replace(row, offset=row.offset + (row.name == "b")) for row in STUDY.rows]
    found = run_all(store, changed)
    assert CALLS == ["a", "b", "c", "b"]
    assert found[1].scores["nll"].mean == pytest.approx(4.0)


def test_restart_runs_everything_again(tmp_path):
    store = Store(tmp_path, STUDY)
    run_all(store)
    run_all(store, restart=True)
    assert CALLS == ["a", "b", "c"] * 2


def test_a_row_is_on_disk_before_the_next_one_begins(tmp_path):
    store = Store(tmp_path, STUDY)
    running = run_rows(STUDY, STUDY.rows, store)
    next(running)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    store = Store(tmp_path, STUDY)
    run_all(store, [A])
    before = store.path(A).read_text()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run_all(store, [A], restart=True)
    assert store.path(A).read_text() == before
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["a.json"]


def test_a_toy_is_never_written(tmp_path):
    store = Store(tmp_path, STUDY)
    with pytest.raises(ValueError, match="a is a toy"):
        run_all(store, [STUDY.toy(A)])
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("text", ["{", '{"format": 0}', '{"format": 1}'])
def test_a_file_that_is_no_result_is_named_with_the_way_out(tmp_path, text):
    store = Store(tmp_path, STUDY)
    store.folder.mkdir()
    store.path(A).write_text(text)
    with pytest.raises(ValueError, match="a.json .*; delete it, or run with --restart"):
        run_all(store, [A])
    assert len(run_all(store, [A], restart=True)) == 1


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"nll": [1.0]}, "one score per repetition for nll, accuracy"),
        ({"nll": [1.0], "accuracy": [1.0, 2.0]}, "one score per repetition"),
        ({"nll": [float("nan")], "accuracy": [1.0]}, "not finite: nll"),
    ],
)
def test_scores_that_are_missing_or_not_finite_are_refused(tmp_path, scores, message):
    from plausible.experiments.study import Outcome

    study = replace(STUDY, run=lambda row, root: Outcome(scores=scores, seeds=[0], device="none"))
    with pytest.raises(ValueError, match=message):
        list(run_rows(study, [A], Store(tmp_path, study)))
    assert not (tmp_path / "toy").exists()


def test_the_commit_is_that_before_the_run(tmp_path, monkeypatch):
    heads = iter(["before", "after"])
    monkeypatch.setattr("plausible.experiments.reproduce.commit_of_the_code", lambda: next(heads))
    study = replace(STUDY, run=lambda row, root: next(heads) and STUDY.run(row, root))
    (result,) = run_rows(study, [A], None)
    assert result.record["commit"] == "before"
