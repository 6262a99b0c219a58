"""Settings are chosen on held-out training images, by what is stored of all candidates."""

from dataclasses import replace

import pytest
import torch

from plausible.experiments import vogn_cifar10, vogn_cifar10_choice
from plausible.experiments.reproduce import run_rows
from plausible.experiments.results import Store, finished
from plausible.experiments.study import Outcome

ROW = vogn_cifar10_choice.row_named("alexnet-vogn")
ADAM = vogn_cifar10_choice.row_named("alexnet-adam")


def stored(results, candidate, nll, *, accuracy=50.0, ece=0.1, looks=(90.0, 90.0)):
    scores = {"accuracy": accuracy, "train": 50.0, "nll": nll, "ece": ece}
    written(results, vogn_cifar10_choice.STUDY, candidate, scores, {"moments": [{"accuracy": at} for at in looks]})


def stored_adam(results, *curves):
    curves = curves or ((70.0, 76.0),)
    scores = dict.fromkeys(vogn_cifar10.STUDY.columns, 1.0)
    epochs = [ADAM.epochs * (k + 1) / len(curves[0]) for k in range(len(curves[0]))]
    details = {"curve": {"epoch": epochs, "accuracy": [list(curve) for curve in curves]}}
    written(results, vogn_cifar10.STUDY, ADAM, scores, details)


def written(results, study, row, scores, details):
    outcome = Outcome.of_seed(0, scores, details=details)
    Store(results, study).write(finished(study, row, outcome, seconds=1.0, load=1.0, command="", commit="none"))


def test_no_test_image_is_looked_at(data_dir):
    data = vogn_cifar10.load(64, data_dir)[0]
    own = vogn_cifar10_choice.held_out(data)
    torch.testing.assert_close(torch.cat([own.x_train, own.x_test]), data.x_train, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([own.y_train, own.y_test]), data.y_train, rtol=0, atol=0)
    assert len(own.x_test) == 32  # of 50,000 it is 5,000


def test_a_candidate_runs_at_toy_size(data_dir):
    study = vogn_cifar10_choice.STUDY
    (found,) = run_rows(study, [study.toy(study.rows[0])], None, root=data_dir)
    assert set(found.scores) == set(study.columns)


def test_a_candidate_is_looked_at_every_twenty_epochs():
    for row in vogn_cifar10_choice.STUDY.rows:
        assert row.looks == row.epochs // 20 and row.seeds == 1


def test_the_one_that_falls_least_short_of_the_published_wins_once_all_are_judged(tmp_path):
    stored_adam(tmp_path)
    *others, last = vogn_cifar10_choice.candidates_of(ROW)
    stored(tmp_path, others[0], 0.8, accuracy=80.0)  # more accurate, and by its likelihood further behind
    for nll, candidate in enumerate(others[1:]):
        stored(tmp_path, candidate, 0.6 + nll)  # with an accuracy of 50 %, which is worse than the likelihood is better
    assert vogn_cifar10_choice.best(ROW, tmp_path) is None
    stored(tmp_path, last, 0.71, accuracy=75.0, ece=0.02)
    chosen = vogn_cifar10_choice.best(ROW, tmp_path)
    assert chosen == replace(
        ROW, rate=1.5e-3, damping=5e-3, curvature_decay=0.9, falls=(14, 55, 70)
    )  # what the last one has of its own
    assert chosen.epochs == ROW.epochs > last.epochs


def test_what_a_candidate_does_not_say_stays_the_row_s(tmp_path):
    row = vogn_cifar10_choice.row_named("resnet18-vogn")
    written(
        tmp_path, vogn_cifar10.STUDY, vogn_cifar10_choice.row_named("resnet18-adam"),
        dict.fromkeys(vogn_cifar10.STUDY.columns, 1.0), {"curve": {"epoch": [161.0], "accuracy": [[80.0]]}},
    )  # fmt: skip
    slow, fast = vogn_cifar10_choice.candidates_of(row)
    stored(tmp_path, slow, 0.3, accuracy=90.0, ece=0.0)
    stored(tmp_path, fast, 0.9, accuracy=90.0, ece=0.0)
    assert vogn_cifar10_choice.best(row, tmp_path) == replace(row, rate=4e-4)
    assert row.falls == (80, 120)


def test_without_adam_s_curve_there_is_no_choice(tmp_path):
    for candidate in vogn_cifar10_choice.candidates_of(ROW):
        stored(tmp_path, candidate, 0.7)
    with pytest.raises(FileNotFoundError, match="has no row alexnet-adam"):
        vogn_cifar10_choice.best(ROW, tmp_path)


def test_a_shortfall_is_of_the_worst_figure_in_tolerances(tmp_path):
    stored_adam(tmp_path)
    adam = Store(tmp_path, vogn_cifar10.STUDY).read(ADAM)
    candidate = vogn_cifar10_choice.candidates_of(ROW)[0]
    for accuracy, nll, ece, short in ((74.48, 0.703, 0.016, 1), (76.0, 0.763, 0.0, 3), (80.0, 0.6, 0.046, 2)):
        stored(tmp_path, candidate, nll, accuracy=accuracy, ece=ece)  # published: 75.48 %, 0.703, 0.016
        found = Store(tmp_path, vogn_cifar10_choice.STUDY).read(candidate)
        assert vogn_cifar10_choice.shortfall(ROW, found, adam) == pytest.approx(short)


def test_a_candidate_is_held_against_adam_at_the_same_epochs(tmp_path):
    stored_adam(tmp_path, (71.0, 77.0), (69.0, 75.0))  # 70 and 76 on average
    adam = Store(tmp_path, vogn_cifar10.STUDY).read(ADAM)
    candidate = replace(vogn_cifar10_choice.candidates_of(ROW)[0], epochs=ADAM.epochs)
    for looks, points in (((64.0, 76.0), 6.0), ((72.0, 75.0), 1.0), ((0.0, 69.0, 72.0, 75.0), 70.0)):
        stored(tmp_path, candidate, 0.3, accuracy=90.0, ece=-0.2, looks=looks)  # far better than the published
        found = Store(tmp_path, vogn_cifar10_choice.STUDY).read(candidate)
        assert vogn_cifar10_choice.shortfall(ROW, found, adam) == pytest.approx(points / 2)
    short = replace(candidate, epochs=120)  # its only look, between Adam's after 80.5 and 161 epochs
    stored(tmp_path, short, 0.3, accuracy=90.0, ece=-0.2, looks=(70.0,))
    found = Store(tmp_path, vogn_cifar10_choice.STUDY).read(short)
    behind = 70.0 + 6.0 * (120 - 80.5) / 80.5 - 70.0
    assert vogn_cifar10_choice.shortfall(ROW, found, adam) == pytest.approx(behind / 2)


def test_a_candidate_that_was_judged_with_other_settings_is_not_judged(tmp_path):
    for candidate in vogn_cifar10_choice.candidates_of(ROW):
        stored(tmp_path, replace(candidate, precision=candidate.precision + 1), 0.7)
    assert vogn_cifar10_choice.best(ROW, tmp_path) is None
