"""Kept draws beyond the memory budget: in files, with the bits that memory would hold, across kills and resumes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.contract_cases import Stop, assert_same_bits, blobs, mlp, stop_at

import plausible as pl
from plausible.core import records
from plausible.core.files import container, mapped
from plausible.core.records import Records

X, Y = blobs()
QUIET = {"progress": False, "device": "cpu", "compile": False, "steps": 40}
METHODS = {"SGLD": pl.SGLD(step_size=1e-4, burn_in=4), "MALA": pl.MALA(warmup=8)}


def fit(name="SGLD", **settings):
    model = pl.BayesianModel(mlp(), pl.likelihoods.Categorical())
    return pl.fit(model, (X, Y), METHODS[name], **{**QUIET, **settings})


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(records, "IN_MEMORY", 100)


def in_a_file(posterior):
    return all(t.is_shared() for c in posterior.components for t in c.draws.values())


@pytest.mark.parametrize(("name", "modes", "vectorise"), [("SGLD", 1, None), ("MALA", 3, True), ("SGLD", 3, False)])
def test_draws_in_files_are_those_of_memory(name, modes, vectorise, monkeypatch, tmp_path, caplog):
    settings = {"num_modes": modes, "vectorise": vectorise}
    expected = fit(name, **settings)
    assert not in_a_file(expected)
    monkeypatch.setattr(records, "IN_MEMORY", 100)
    monkeypatch.setattr(mapped.tempfile, "tempdir", str(tmp_path))
    found = fit(name, **settings)
    assert in_a_file(found) and "so they are kept in temporary files" in caplog.text
    assert_same_bits(found, expected)
    assert [
        p for f in tmp_path.iterdir() for p in f.iterdir()
    ] == []  # no name is left, whatever becomes of the process
    assert torch.equal(found.predict(X).probs, expected.predict(X).probs)
    assert found.diagnostics() == expected.diagnostics()
    assert torch.equal(found.sample(5, seed=1)["0.weight"], expected.sample(5, seed=1)["0.weight"])
    found.save(tmp_path / "found")
    expected.save(tmp_path / "expected")
    (tensors, manifest), (others, same) = (container.read(tmp_path / k, "posterior") for k in ("found", "expected"))
    assert manifest == same and tensors.keys() == others.keys()
    assert all(torch.equal(t, others[k]) for k, t in tensors.items())


def test_only_what_is_beyond_the_budget_of_all_modes_goes_to_a_file(monkeypatch):
    record = {"w": torch.zeros(10)}
    monkeypatch.setattr(records, "IN_MEMORY", 400)
    for lanes, expected in ((2, False), (3, True)):
        ring = Records(5, mapped.MappedFolder(None), lanes=lanes)
        ring.add(record)
        assert ring.on_disk == expected


def test_saving_copies_no_draw_that_lies_in_a_file(no_memory, monkeypatch, tmp_path):
    posterior = fit()
    handed = []
    monkeypatch.setattr(container, "save_file", lambda tensors, path, metadata: handed.append(tensors) or path.touch())
    posterior.save(tmp_path / "file")
    (tensors,) = handed
    assert tensors["posterior/draws/0.weight"].data_ptr() == posterior.draws["0.weight"].data_ptr()


@pytest.mark.parametrize(("modes", "vectorise", "step"), [(1, None, 2), (3, True, 17), (3, False, 38)])
def test_a_run_with_draws_in_files_resumes_to_the_same_bits(modes, vectorise, step, monkeypatch, tmp_path):
    settings = {"num_modes": modes, "vectorise": vectorise}
    expected = fit(**settings)
    monkeypatch.setattr(records, "IN_MEMORY", 100)
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    with pytest.raises(Stop):
        fit(checkpoint=setting, callbacks=[stop_at(step)], **settings)
    resumed = fit(checkpoint=setting, resume=True, **settings)
    assert in_a_file(resumed)
    assert_same_bits(resumed, expected)
    assert_same_bits(fit(checkpoint=setting, resume=True, **settings), expected)  # a run that is over
    assert len(list(tmp_path.iterdir())) == 2  # the checkpoint and one folder of draws
    assert (tmp_path / "run.ckpt").stat().st_size < 60_000  # which it does not hold again


def test_a_new_run_removes_the_draws_of_the_old_one_when_its_first_checkpoint_is_written(no_memory, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    fit(checkpoint=setting)
    (old,) = tmp_path.glob("*.draws-*")
    with pytest.raises(Stop):
        fit(checkpoint=pl.Checkpoint(tmp_path / "run.ckpt", every_steps=30), callbacks=[stop_at(20)], seed=1)
    assert old.exists()  # the old run can still be taken up
    fit(checkpoint=setting, resume=True)
    fit(checkpoint=setting, seed=1)
    (new,) = tmp_path.glob("*.draws-*")
    assert new != old


def test_draws_of_other_runs_stay_whatever_their_names_have_in_common(no_memory, tmp_path):
    others = [tmp_path / "run1.ckpt.draws-0", tmp_path / "run.ckpt.draws-0"]
    own = tmp_path / "run[1].ckpt.draws-0"
    for folder in (*others, own):
        folder.mkdir()
    mapped.MappedFolder(tmp_path / "run[1].ckpt").remove_others()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_mixture_is_where_its_chains_draws_are_used(no_memory):
    chains = fit(num_modes=2)
    for chain in chains.components:
        chain.runs_on = torch.device("meta")  # as a run on a GPU says it, whose draws lie in files
    assert chains.device == torch.device("meta")


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_a_damaged_file_of_draws_is_found_before_a_run_goes_on(damage, no_memory, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    with pytest.raises(Stop):
        fit(checkpoint=setting, callbacks=[stop_at(20)])
    (file, *_) = sorted(next(tmp_path.glob("*.draws-*")).iterdir())
    if damage == "missing":
        file.unlink()
    else:
        raw = bytearray(file.read_bytes())
        raw[3] ^= 1
        file.write_bytes(raw if damage == "changed" else raw[:-1])
    with pytest.raises((ValueError, FileNotFoundError), match="not those of the checkpoint|missing or damaged"):
        fit(checkpoint=setting, resume=True)


def test_a_full_disk_is_an_error_that_says_the_way_out_before_any_draw_is_lost(no_memory, monkeypatch, tmp_path):
    def full(handle, begin, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="find no room in .*No space left.*thin=.*checkpoint="):
        fit(checkpoint=tmp_path / "run.ckpt")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from tests.core import test_records as t
t.records.IN_MEMORY = 100
def kill(event):
    if event["step"] == 22:
        os.kill(os.getpid(), signal.SIGKILL)
t.fit(num_modes=3, vectorise=True, checkpoint=t.pl.Checkpoint(sys.argv[1], every_steps=4), callbacks=[kill])
"""


def test_a_killed_run_resumes_to_the_same_bits_from_its_files(no_memory, tmp_path):
    root, path = Path(__file__).parents[2], tmp_path / "run.ckpt"
    places = os.pathsep.join(p for p in [str(root), *sys.path] if p)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    over = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, capture_output=True, timeout=120)
    assert over.returncode == -signal.SIGKILL, over.stderr.decode()
    settings = {"num_modes": 3, "vectorise": True}
    resumed = fit(checkpoint=pl.Checkpoint(path, every_steps=4), resume=True, **settings)
    assert_same_bits(resumed, fit(**settings))
