"""Rows unlike the training rows."""

import json

import numpy as np

from plausible.tabular.novelty import Novelty, learn_novelty


def test_about_one_fresh_row_in_a_hundred_is_far_and_an_outlier_always_is():
    draw = np.random.default_rng(0)
    novelty = learn_novelty(draw.normal(size=(4000, 3)), seed=0)
    share = novelty.far(draw.normal(size=(20000, 3))).mean()
    # The threshold is a quantile of 1,000 rows: its share has a standard error of √(0.01 · 0.99 / 1000) = 0.3 %.
    assert 0.0 < share < 0.02, share
    assert novelty.far(np.array([[8.0, 0, 0], [0, 0, 0]])).tolist() == [True, False]


def test_a_gap_between_two_clusters_is_far_though_every_column_is_in_its_range():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 2)) * 0.1 + np.where(draw.random((400, 1)) < 0.5, -1.0, 1.0)
    assert learn_novelty(x, seed=0).far(np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0]])).tolist() == [True, False, True]


def test_the_distance_is_that_to_the_nearest_centre():
    novelty = Novelty(np.array([[0.0, 0.0], [3.0, 4.0]]), threshold=1.0)
    assert novelty.far(np.array([[0.0, 0.99], [0.0, 1.01], [3.0, 4.5], [1.5, 2.0]])).tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert novelty.far(np.empty((0, 2))).tolist() == []


def test_it_survives_json_and_follows_from_the_seed():
    x = np.random.default_rng(0).normal(size=(60, 2))
    novelty = learn_novelty(x, seed=1)
    again = Novelty.from_data(json.loads(json.dumps(learn_novelty(x, seed=1).as_data())))
    assert np.array_equal(novelty.centres, again.centres) and novelty.threshold == again.threshold


def test_rows_that_are_all_the_same_are_not_far_from_themselves():
    x = np.ones((20, 2))
    assert not learn_novelty(x, seed=0).far(x).any() and learn_novelty(x, seed=0).far(x + 1).all()
