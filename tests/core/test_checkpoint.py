"""Checkpoints: when they are written, that they are whole, and that another run's is refused."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace

import pytest
import torch
from tests.contract_cases import CASES, Stop, assert_same_bits, blobs, fit, mlp, model, stop_at

import plausible as pl
from plausible.core.files import checkpoint as module
from plausible.core.files import container


def done_in(path) -> int:
    return container.read(path, "checkpoint")[1]["done"]


def test_a_checkpoint_is_written_every_so_many_steps_and_at_the_end(tmp_path):
    path = tmp_path / "run.ckpt"
    seen = []

    def look(event):
        seen.append(done_in(path) if path.exists() else 0)

    fit("MAP", steps=8, checkpoint=pl.Checkpoint(path, every_steps=3), callbacks=[look])
    assert seen == [0, 0, 0, 3, 3, 3, 6, 6]
    assert done_in(path) == 8


def test_by_default_a_checkpoint_is_written_by_the_clock_and_writing_takes_a_twentieth_at_most(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def slow_write(*args):
        now[0] += 10.0

    monkeypatch.setattr(module.container, "write", slow_write)
    keeper = module.Keeper(tmp_path / "run.ckpt", {})
    now[0] = 29.0
    assert not keeper.due(1)
    now[0] = 31.0
    assert keeper.due(2)
    keeper.write(2, {}, [], {}, [], False)
    now[0] += 199.0
    assert not keeper.due(3)
    now[0] += 2.0
    assert keeper.due(4)


def test_resuming_from_nothing_starts_from_the_beginning(tmp_path):
    assert_same_bits(fit("SWAG", checkpoint=tmp_path / "none.ckpt", resume=True), fit("SWAG"))


def test_without_resume_an_old_checkpoint_is_replaced(tmp_path):
    fit("MAP", seed=1, checkpoint=tmp_path / "run.ckpt")
    assert_same_bits(fit("MAP", checkpoint=tmp_path / "run.ckpt"), fit("MAP"))


CHANGES = {
    "seeds": {"seed": 1},
    "steps": {"steps": 24},
    "batch_size": {"batch_size": 8},
    "num_data": {"num_data": 60},
    "modes": {"num_modes": 2},
    "precision": {"precision": "bf16"},
    "temperature": {"own_model": model(temperature=0.5)},
    "unknowns": {"own_model": model(torch.nn.Linear(2, 3))},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_checkpoint_of_another_run_is_refused_and_says_what_differs(what, tmp_path):
    fit("MAP", checkpoint=tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match=f"another run: {what} was") as caught:
        fit("MAP", checkpoint=tmp_path / "run.ckpt", resume=True, **CHANGES[what])
    assert "\n" not in str(caught.value) and "resume=False" in str(caught.value)


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    def run(method, **settings):
        return pl.fit(
            model(), blobs(), method, steps=6, progress=False, device="cpu", checkpoint=tmp_path / "a", **settings
        )

    method = CASES["MAP"].method
    run(method)
    with pytest.raises(ValueError, match="another run: method was") as caught:
        run(replace(method, learning_rate=0.5), resume=True)
    assert "\n" not in str(caught.value)


def test_a_users_own_schedule_does_not_stop_a_resume(tmp_path):
    def run(**settings):
        method = pl.MAP(schedule=lambda progress: 1 - 0.5 * progress)  # another object, at another address, every time
        return pl.fit(model(), blobs(), method, steps=12, batch_size=16, progress=False, device="cpu", **settings)

    setting = pl.Checkpoint(tmp_path / "a", every_steps=5)
    with pytest.raises(Stop):
        run(checkpoint=setting, callbacks=[stop_at(7)])
    assert_same_bits(run(checkpoint=setting, resume=True), run())


def test_a_run_resumed_another_way_is_refused_since_bits_would_differ(tmp_path):
    fit("MAP", num_modes=4, vectorise=True, checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="went another way") as caught:
        fit("MAP", num_modes=4, vectorise=False, checkpoint=tmp_path / "a", resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", range(10))
def test_a_damaged_checkpoint_is_refused(number, tmp_path):
    path = tmp_path / "run.ckpt"
    fit("MAP", steps=2, checkpoint=path)
    raw, chance = bytearray(path.read_bytes()), random.Random(number)
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)
    with pytest.raises(ValueError) as caught:
        fit("MAP", steps=2, checkpoint=path, resume=True)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_full_disk_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    setting = pl.Checkpoint(path, every_steps=4)
    original, written = os.fsync, []

    def fsync(handle):
        written.append(handle)
        if len(written) > 4:  # a file and its folder at every checkpoint
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left") as caught:
            fit("MAP", checkpoint=setting)
    assert "\n" not in str(caught.value)
    assert done_in(path) == 8 and [p.name for p in tmp_path.iterdir()] == [path.name]
    assert_same_bits(fit("MAP", checkpoint=setting, resume=True), fit("MAP"))


def test_a_second_resume_goes_on_from_the_first(tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=2)
    for step in (4, 9, 15):
        with pytest.raises(Stop):
            fit("MultiSWAG", checkpoint=setting, resume=True, callbacks=[stop_at(step)])
    assert_same_bits(fit("MultiSWAG", checkpoint=setting, resume=True), fit("MultiSWAG"))


def test_a_resumed_run_may_use_a_network_with_other_weights(tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=2)
    with pytest.raises(Stop):
        fit("MAP", checkpoint=setting, callbacks=[stop_at(9)])
    other = mlp()
    with torch.no_grad():
        other[0].weight.zero_()
    assert_same_bits(fit("MAP", model(other), checkpoint=setting, resume=True), fit("MAP"))
