"""Numbers or classes: found, told, or refused with the reason."""

import pytest
import torch

from plausible.tabular.preparation import prepare, split
from plausible.tabular.reading import Table
from plausible.tabular.targets import Classes, Numbers, find_task, learn_target, rows_with_target, target_from_data


def table(**columns):
    return Table("data.csv", {name: list(values) for name, values in columns.items()}, "CSV", ",")


NUMBERS = [f"{i / 7:.3f}" for i in range(40)]


@pytest.mark.parametrize(
    ("texts", "task", "reason"),
    [
        (NUMBERS, "regression", "'y' has 40 different values, all numbers"),
        (["0", "1"] * 20, "classification", "'y' has 2 different values, all whole numbers"),
        (["0.5", "1.5"] * 20, "regression", "'y' has 2 different values, all numbers"),
        ([str(i) for i in range(40)], "regression", "'y' has 40 different values, all numbers"),
        (["yes", "no"] * 20, "classification", "'y' has 2 different values, all text"),
    ],
)
def test_the_task_is_found_by_the_values_and_the_reason_is_said(texts, task, reason):
    assert find_task("y", texts, None) == (task, reason)


def test_the_task_may_be_told():
    assert find_task("y", ["0", "1"] * 20, "regression") == ("regression", "as asked for")
    assert find_task("y", ["0.5", "1.5"] * 20, "classification") == ("classification", "as asked for")


@pytest.mark.parametrize(
    ("texts", "task", "message"),
    [
        (["3"] * 20, None, "is always '3', so there is nothing to predict"),
        (["1", "b"] * 10, "regression", "must be numbers for regression, got 'b'$"),
        ([f"name {i}" for i in range(20)], None, "20 different labels in 20 rows .such as 'name 0'., too many"),
        ([f"{i},500" for i in range(20)], None, "too many to be classes; numbers must be written without separators"),
        (["1,500"] * 20 + ["2,500"] * 20, "regression", "got '1,500'; numbers must be written without separators"),
        (NUMBERS, "classification", "40 different labels in 40 rows"),
    ],
)
def test_a_target_that_cannot_be_learnt_is_refused_with_the_reason(texts, task, message):
    with pytest.raises(ValueError, match=message):
        find_task("y", texts, task)


def test_rows_without_a_target_are_left_out_and_counted():
    given = table(x=NUMBERS, y=["", "NA", *NUMBERS[2:]])
    assert rows_with_target(given, "y") == list(range(2, 40))
    parts = prepare(given, "y", None, 0.25, seed=0)
    assert parts.without_target == 2 and len(parts.train) + len(parts.test) == 38


def test_one_row_is_too_few_and_so_are_nine():
    with pytest.raises(ValueError, match="has 1 row with a value of 'y', and at least 10 are needed"):
        rows_with_target(table(x=["1"], y=["2"]), "y")
    with pytest.raises(ValueError, match="has 9 rows with"):
        rows_with_target(table(x=["1"] * 12, y=["2"] * 9 + ["?"] * 3), "y")


def test_numbers_are_standardised_by_training_rows_alone():
    target = learn_target("y", "regression", ["1", "3", "100"], ["1", "3"])
    assert target == Numbers(name="y", mean=2.0, scale=1.0)
    assert torch.equal(target.encode(["1", "3", "100"]), torch.tensor([[-1.0], [1.0], [98.0]]))


def test_class_numbers_are_in_the_order_of_numbers_or_of_the_alphabet():
    assert learn_target("y", "classification", ["10", "9", "10"], ["10"]).classes == ("9", "10")
    assert learn_target("y", "classification", ["b", "a10", "a9"], []).classes == ("a10", "a9", "b")
    assert Classes(name="y", classes=("9", "10")).encode(["10", "9"]).tolist() == [1, 0]


@pytest.mark.parametrize("target", [Numbers(name="y", mean=1.0, scale=2.0), Classes(name="y", classes=("a", "<b>"))])
def test_a_target_survives_as_data(target):
    assert target_from_data(target.as_data()) == target


def test_a_split_keeps_the_shares_of_classes_and_follows_from_the_seed():
    labels = ["a"] * 50 + ["b"] * 10 + ["c"]
    train, test = split(labels, "classification", 0.2, seed=3)
    assert sorted(train + test) == list(range(61))
    assert [labels[i] for i in test] == ["a"] * 10 + ["b"] * 2  # the lone c is learnt from
    assert split(labels, "classification", 0.2, seed=3) == (train, test)
    assert split(labels, "classification", 0.2, seed=4) != (train, test)
    assert split(labels, "regression", 0.0, seed=0) == (list(range(61)), [])


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="test_share must be at least 0 and less than 1, got 1"):
        prepare(table(x=NUMBERS, y=NUMBERS), "y", None, 1.0, seed=0)
