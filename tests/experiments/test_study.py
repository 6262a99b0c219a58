"""What a study is, and what may stand beside a published number."""

import math
import os
from dataclasses import replace

import pytest
import torch
from scipy import stats
from tests.experiments.toy_study import STUDY, ToyRow

from plausible.experiments.study import (
    Column,
    Estimate,
    Outcome,
    Published,
    Row,
    comparable,
    estimate,
    standard_errors_better,
)

PUBLISHED = Published(values={"nll": 1.0}, epochs=40)


@pytest.mark.parametrize(("epochs", "allowed"), [(39, False), (40, True), (100, True)])
def test_a_row_that_was_trained_shorter_than_the_published_one_does_not_stand_beside_it(epochs, allowed):
    found = comparable(Row(name="a", epochs=epochs), PUBLISHED)
    assert found is (PUBLISHED if allowed else None)


def test_a_toy_does_not_stand_beside_a_published_number_however_long_it_was_trained():
    assert comparable(Row(name="a", epochs=1000, full=False), PUBLISHED) is None


def test_mean_and_standard_error_are_those_of_scipy():
    scores = [2.0, 3.5, 1.25, 7.0]
    found = estimate(scores)
    assert found.mean == pytest.approx(sum(scores) / 4)
    assert found.error == pytest.approx(stats.sem(scores))


def test_one_repetition_has_no_standard_error():
    assert math.isnan(estimate([2.0]).error)


@pytest.mark.parametrize(("better", "sign"), [("low", 1), ("high", -1)])
def test_a_difference_is_in_standard_errors_and_positive_where_ours_is_better(better, sign):
    column = Column(heading="", form=".2f", better=better, meaning="")
    assert standard_errors_better(Estimate(2.0, 0.5), column, 3.0) == pytest.approx(sign * 2.0)
    # Independent errors of 0.3 and 0.4 make one of 0.5.
    assert standard_errors_better(Estimate(2.0, 0.3), column, 3.0, 0.4) == pytest.approx(sign * 2.0)


def test_rows_are_chosen_by_name_in_the_order_of_the_study():
    assert [row.name for row in STUDY.chosen(["b", "a"])] == ["a", "b"]
    assert STUDY.chosen(None) == list(STUDY.rows)
    with pytest.raises(ValueError, match="rows must be any of a, b, c, got 'd'"):
        STUDY.chosen(["a", "d"])


def test_published_numbers_of_rows_or_columns_that_are_not_run_are_refused():
    with pytest.raises(ValueError, match="does not run"):
        replace(STUDY, published={"z": PUBLISHED})
    with pytest.raises(ValueError, match="does not run"):
        replace(STUDY, published={"a": Published(values={"brier": 1.0}, epochs=1)})


def test_the_settings_of_a_row_are_all_of_its_fields_as_json_has_them():
    row = ToyRow(name="a", epochs=3, widths=(4, 5))
    assert row.settings() == {"name": "a", "epochs": 3, "full": True, "offset": 0.0, "widths": [4, 5]}


def test_a_score_with_an_aim_is_better_the_nearer_it_is_on_either_side():
    column = Column(heading="", form=".2f", better="near", meaning="", aim=0.68)
    assert column.direction == "nearer to 0.68 is better"
    assert standard_errors_better(Estimate(0.70, 0.01), column, 0.60) == pytest.approx(6.0)  # 0.02 beside 0.08 away
    assert standard_errors_better(Estimate(0.60, 0.01), column, 0.70) == pytest.approx(-6.0)


def test_where_neither_way_is_better_no_difference_is_called_one():
    column = Column(heading="", form=".2f", better="neither", meaning="")
    assert math.isnan(standard_errors_better(Estimate(2.0, 0.5), column, 3.0))


@pytest.mark.parametrize(("better", "aim"), [("near", None), ("low", 0.5)])
def test_an_aim_goes_with_near_alone(better, aim):
    with pytest.raises(ValueError, match='aim goes with better="near"'):
        Column(heading="", form=".2f", better=better, meaning="", aim=aim)


def test_a_description_is_not_said_to_be_better_either_way():
    assert Column(heading="", form=".2f", better="neither", meaning="").direction == "neither way is better"


def test_an_outcome_names_the_gpu_where_there_is_one_and_else_the_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Outcome(scores={}, seeds=[]).device == f"CPU with {os.cpu_count()} cores"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert Outcome(scores={}, seeds=[]).device == "a GPU"
    assert Outcome(scores={}, seeds=[], device="a CPU all the same").device == "a CPU all the same"
