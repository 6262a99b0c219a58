"""Callbacks: what they are told, that they can stop a run, and that they survive a resume."""

from __future__ import annotations

import csv
import struct

import pytest
import torch
from tests.contract_cases import Stop, assert_same_bits, blobs, fit, model, stop_at

import plausible as pl

X, Y = blobs()
VALIDATION = (X[:20], Y[:20])


def test_a_callback_hears_of_every_step():
    events = []
    fit("MAP", steps=9, callbacks=[events.append])
    assert [e["step"] for e in events] == list(range(9))
    assert [e["epoch"] for e in events] == [0] * 4 + [1] * 4 + [2]
    assert all(e["steps"] == 9 and e["log_joint"].shape == (1,) for e in events)


def test_a_callback_that_returns_true_stops_the_run_and_every_other_still_hears():
    heard = []
    fit("MAP", callbacks=[lambda e: e["step"] == 4, lambda e: heard.append(e["step"])])
    assert heard == list(range(5))


def test_what_is_truthy_but_not_true_does_not_stop():
    heard = []
    fit("MAP", steps=5, callbacks=[lambda e: heard.append(e) or heard])
    assert len(heard) == 5


def test_the_validation_loss_is_the_mixture_s_after_every_epoch():
    events = []
    posterior = fit("DeepEnsemble", steps=8, validation=VALIDATION, callbacks=[events.append])
    told = [e["validation_nll"] for e in events if "validation_nll" in e]
    assert [e["step"] for e in events if "validation_nll" in e] == [3, 7]
    expected = -posterior.predict(VALIDATION[0]).log_prob(VALIDATION[1]).mean()
    assert told[-1] == pytest.approx(float(expected), rel=1e-5)


def test_validation_does_not_change_the_run():
    assert_same_bits(fit("SWAG", validation=VALIDATION), fit("SWAG"))


def overfit(callbacks, **settings):
    """A rate so high, on so little data, that validation gets worse before long."""
    data = (X[:8], torch.tensor([0, 1, 2, 2, 1, 0, 0, 1]))
    method = pl.MAP(optimizer="adam", learning_rate=0.1, schedule="constant")
    return pl.fit(
        model(prior=pl.priors.Flat()), data, method, epochs=200, batch_size=8, validation=VALIDATION, progress=False,
        device="cpu", callbacks=callbacks, **settings,
    )  # fmt: skip


def test_early_stopping_stops_patience_epochs_after_the_best():
    told = []
    overfit([pl.callbacks.EarlyStopping(patience=7), lambda e: told.append(e["validation_nll"])])
    assert len(told) < 200
    assert len(told) - 1 - told.index(min(told)) == 7


def test_early_stopping_needs_patience():
    with pytest.raises(ValueError, match="patience.*0"):
        pl.callbacks.EarlyStopping(patience=0)


def test_early_stopping_survives_a_resume_and_a_stopped_run_stays_stopped(tmp_path):
    whole = overfit([pl.callbacks.EarlyStopping(patience=7)])
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    with pytest.raises(Stop):
        overfit([pl.callbacks.EarlyStopping(patience=7), stop_at(10)], checkpoint=setting)
    for _ in range(2):  # the second time the run is over already
        resumed = overfit([pl.callbacks.EarlyStopping(patience=7)], checkpoint=setting, resume=True)
        assert_same_bits(resumed, whole)


def rows_of(path):
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def test_the_csv_logger_writes_a_row_every_so_many_steps_and_at_every_validation(tmp_path):
    events = []
    logger = pl.callbacks.CSVLogger(tmp_path / "log.csv", every=3)
    fit("MAP", steps=10, validation=VALIDATION, callbacks=[logger, events.append])
    rows = rows_of(tmp_path / "log.csv")
    assert [int(r["step"]) for r in rows] == [0, 3, 6, 7, 9]
    assert [bool(r["validation_nll"]) for r in rows] == [False, True, False, True, False]
    for r in rows:
        assert float(r["log_joint"]) == pytest.approx(float(events[int(r["step"])]["log_joint"]), rel=1e-6)


def test_the_csv_logger_goes_on_in_the_same_file_after_a_resume(tmp_path):
    whole, path = tmp_path / "whole.csv", tmp_path / "log.csv"
    fit("MAP", callbacks=[pl.callbacks.CSVLogger(whole, every=2)])
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(Stop):
        fit("MAP", callbacks=[pl.callbacks.CSVLogger(path, every=2), stop_at(13)], checkpoint=setting)
    fit("MAP", callbacks=[pl.callbacks.CSVLogger(path, every=2)], checkpoint=setting, resume=True)
    assert path.read_text() == whole.read_text()


def test_the_csv_logger_starts_a_new_file_for_a_new_run(tmp_path):
    for _ in range(2):
        fit("MAP", steps=4, callbacks=[pl.callbacks.CSVLogger(tmp_path / "log.csv", every=1)])
    assert len(rows_of(tmp_path / "log.csv")) == 4


def test_tensorboard_gets_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = []
    board = pl.callbacks.TensorBoard(tmp_path, every=2)
    fit("MAP", steps=6, validation=VALIDATION, callbacks=[board, events.append])
    board.writer.close()
    stored = EventAccumulator(str(tmp_path))
    stored.Reload()
    assert "validation_nll" in stored.Tags()["scalars"]
    found = {s.step: s.value for s in stored.Scalars("log_joint")}
    assert sorted(found) == [0, 2, 3, 4]
    for step, value in found.items():
        assert struct.pack("f", value) == struct.pack("f", float(events[step]["log_joint"].mean()))


def test_callbacks_do_not_change_the_run(tmp_path):
    callbacks = [pl.callbacks.CSVLogger(tmp_path / "log.csv", every=1), lambda e: e["log_joint"].mul_(0) and None]
    assert_same_bits(fit("SWAG", callbacks=callbacks[:1]), fit("SWAG"))
    assert torch.isfinite(fit("MAP", callbacks=callbacks).mean["0.weight"]).all()
