"""Settings are chosen on held-out training images, by what is stored of all candidates."""

from dataclasses import replace

import pytest
import torch

from plausible.experiments import vogn_cifar10, vogn_cifar10_choice
from plausible.experiments.reproduce import run_rows
from plausible.experiments.results import Store, finished
from plausible.experiments.study import Outcome

(ROW,) = vogn_cifar10.STUDY.chosen(["alexnet-vogn"])


def stored(store, candidate, nll, *, accuracy=50.0, ece=0.1):
    scores = {"accuracy": accuracy, "train": 50.0, "nll": nll, "ece": ece}
    outcome = Outcome.of_seed(0, scores)
    store.write(finished(store.study, candidate, outcome, seconds=1.0, load=1.0, command="", commit="none"))


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


def test_the_one_that_falls_least_short_of_the_published_wins_once_all_are_judged(tmp_path):
    store = Store(tmp_path, vogn_cifar10_choice.STUDY)
    first, *others = vogn_cifar10_choice.candidates_of(ROW)
    for nll, candidate in enumerate(others):
        stored(store, candidate, 0.7 + nll)  # with an accuracy of 50 %, which is worse than the likelihood is better
    assert vogn_cifar10_choice.best(ROW, store) is None
    stored(store, first, 0.9, accuracy=75.0)
    own = ("factor", "precision", "damping", "rate", "falls")
    assert vogn_cifar10_choice.best(ROW, store) == replace(ROW, **{key: getattr(first, key) for key in own})


def test_a_shortfall_is_of_the_worst_figure_in_tolerances(tmp_path):
    store = Store(tmp_path, vogn_cifar10_choice.STUDY)
    candidate = vogn_cifar10_choice.candidates_of(ROW)[0]
    for accuracy, nll, ece, short in ((74.48, 0.703, 0.016, 1), (76.0, 0.763, 0.0, 3), (80.0, 0.6, 0.046, 2)):
        stored(store, candidate, nll, accuracy=accuracy, ece=ece)  # published: 75.48 %, 0.703, 0.016
        assert vogn_cifar10_choice.shortfall(ROW, store.read(candidate)) == pytest.approx(short)


def test_a_candidate_that_was_judged_with_other_settings_is_not_judged(tmp_path):
    store = Store(tmp_path, vogn_cifar10_choice.STUDY)
    for candidate in vogn_cifar10_choice.candidates_of(ROW):
        stored(store, replace(candidate, precision=candidate.precision + 1), 0.7)
    assert vogn_cifar10_choice.best(ROW, store) is None
