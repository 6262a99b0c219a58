"""Which columns are used, which are left out, and what is said about both."""

import json

import numpy as np
import pytest

from plausible.tabular.reading import Table
from plausible.tabular.schema import Schema, learn_schema


def table(**columns):
    return Table("data.csv", {name: list(values) for name, values in columns.items()}, "CSV", ",")


@pytest.fixture
def schema():
    return learn_schema(
        table(
            size=["1", "2", "", "4"], city=["a", "b", "a", "b"], day=["2024-01-01", "2024-01-02", "2024-03-01", ""],
            same=["x"] * 4, gone=["", "NA", "?", "null"], key=["k1", "k2", "k3", "k4"],
            code=list("1234"), y=list("1234"),
        ),
        "y",
    )  # fmt: skip


def test_kinds_are_found_and_whole_numbers_are_numbers(schema):
    assert {column.name: column.kind for column in schema.columns} == {
        "size": "numeric", "city": "categorical", "day": "date", "code": "numeric",
    }  # fmt: skip


def test_constant_empty_and_identifying_columns_are_left_out_with_a_reason(schema):
    assert schema.dropped == {
        "same": "is always 'x'",
        "gone": "has no values",
        "key": "is different in every row, as a name or number of a record is (such as 'k1')",
    }


def test_a_constant_with_gaps_is_kept_for_what_the_gaps_say():
    schema = learn_schema(table(x=["5", "", "5"], c=["v", "v", ""], y=["1", "2", "3"]), "y")
    assert np.array_equal(schema.encode(table(x=["5", ""], c=["v", ""])).x, [[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]])


def test_a_table_with_nothing_to_predict_from_is_refused():
    with pytest.raises(ValueError, match="no column to predict 'y' from .*'x': is always '1'"):
        learn_schema(table(x=["1", "1"], y=["1", "2"]), "y")
    with pytest.raises(ValueError, match="it is the only one"):
        learn_schema(table(y=["1", "2"]), "y")


def test_numbers_with_separators_are_text_and_that_is_said():
    schema = learn_schema(table(pay=["1,200", "1,200", "3,400", "3,400"], y=list("1234")), "y")
    assert schema.columns[0].categories == ("1,200", "3,400")
    assert schema.remarks == ("pay: '1,200' is text here; write numbers without separators and with a decimal point",)
    with pytest.raises(ValueError, match="numbers such as '1,200' must be written without separators"):
        learn_schema(table(pay=["1,200", "3,400"], y=["1", "2"]), "y")


def test_a_column_of_mostly_numbers_is_text_and_that_is_said():
    schema = learn_schema(table(x=["1", "1", "2", "2", "many"], y=list("12345")), "y")
    assert schema.columns[0].kind == "categorical" and "because of values such as 'many'" in schema.remarks[0]


def test_dates_that_fit_two_formats_are_read_day_first_and_that_is_said():
    schema = learn_schema(table(d=["03/04/2024", "05/06/2024"], y=["1", "2"]), "y")
    assert schema.columns[0].first == "2024-04-03T00:00:00" and "read as day first" in schema.remarks[0]


def test_a_missing_column_is_one_line_that_names_it(schema):
    with pytest.raises(ValueError, match="^data.csv lacks the columns 'city', 'code'; it has 'size', 'day'$"):
        schema.encode(table(size=["1"], day=["2024-01-01"]))


def test_extra_columns_are_ignored_and_said_and_the_target_is_neither(schema):
    new = table(size=["1"], city=["a"], day=["2024-01-01"], code=["1"], colour=["red"], y=["9"], same=["z"])
    inputs = schema.encode(new, "y")
    assert inputs.remarks == ["ignored, not in the training data: 'colour'"]
    assert inputs.x.shape == (1, len(schema.features))


def test_unseen_categories_gaps_and_unreadable_values_are_counted(schema):
    new = table(size=["", "3", "big"], city=["c", "c", ""], day=["2024-01-01", "soon", ""], code=["", "1", "1"])
    inputs = schema.encode(new)
    assert inputs.unseen.tolist() == [True, True, False]
    assert inputs.remarks == [
        "size: 1 row with no number, taken as missing",
        "size: 1 row with a missing value, taken as the median",
        "city: 2 rows with a category that training never saw (such as 'c'), taken as “another”",
        "city: 1 row with a missing value, taken as no category: training had none",
        "day: 1 row with no readable date, taken as missing",
        "day: 1 row with a missing value, taken as the median",
        "code: 1 row with a missing value, taken as the median, though training had none",
    ]


def test_a_schema_survives_json(schema):
    assert Schema.from_data(json.loads(json.dumps(schema.as_data()))) == schema
