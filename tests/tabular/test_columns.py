"""Text to numbers, column by column."""

import json
import math
from datetime import date, timedelta

import numpy as np
import pytest

from plausible.tabular.columns import Category, Date, Numeric, as_data, from_data
from plausible.tabular.values import date as read_date
from plausible.tabular.values import fitting_date_formats, looks_separated, number


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("-2.5", -2.5), (".5", 0.5), ("1e3", 1000.0), ("+4.", 4.0)])
def test_plain_decimal_notation_is_a_number(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["1_000", "inf", "nan", "1,234", "1 000", "0x10", "1e999", "٣", "", "1.2.3", "€5"])
def test_anything_else_is_not(text):
    assert number(text) is None


def test_thousands_separators_and_decimal_commas_are_recognised_as_such():
    assert all(map(looks_separated, ["1,234", "1.234.567", "12,5", "1'000", "-1,234.50"]))
    assert not any(map(looks_separated, ["1234", "1.5", "a,b", "1,2,3", "Oslo"]))


def test_dates_are_read_in_the_format_that_fits_all_of_them():
    assert fitting_date_formats(["2024-01-31", "2024-02-01T12:30"]) == ["ISO"]
    assert fitting_date_formats(["31/01/2024", "01/02/2024"]) == ["%d/%m/%Y"]
    assert fitting_date_formats(["01/31/2024"]) == ["%m/%d/%Y"]
    assert fitting_date_formats(["31.1.2024"]) == ["%d.%m.%Y"]
    assert fitting_date_formats(["2024-01-31", "soon"]) == [] and fitting_date_formats([]) == []
    assert read_date("2024-01-31T02:00+02:00", "ISO").isoformat() == "2024-01-31T00:00:00"


def test_numbers_are_standardised_and_missing_ones_become_the_median_with_a_flag():
    texts = ["1", "2", "NA", "6"]
    column = Numeric.learn("x", texts)
    values = np.array([1, 2, 2, 6.0])  # the median of 1, 2, 6 in the gap
    encoded = column.encode(texts)
    np.testing.assert_allclose(encoded.features[:, 0], (values - values.mean()) / values.std())
    assert encoded.features[:, 1].tolist() == [0, 0, 1, 0]
    assert (encoded.missing, encoded.unreadable) == (1, 0)
    assert column.features == ["x", "x is missing"]


def test_text_in_a_column_of_numbers_counts_as_missing_and_is_counted_apart():
    encoded = Numeric.learn("x", ["1", "2", "3"]).encode(["", "two", "2"])
    assert (encoded.missing, encoded.unreadable) == (1, 1)
    assert encoded.features[:, 0].tolist() == [0, 0, 0] and encoded.features.shape == (3, 1)


def test_a_date_is_days_since_the_first_and_a_place_in_year_and_week():
    days = [date(2024, 1, 1) + timedelta(days=31 * i) for i in range(6)]
    texts = [day.isoformat() for day in days]
    column = Date.learn("sold", texts, "ISO")
    features = column.encode(texts).features
    since = np.array([(day - days[0]).days for day in days], dtype=float)
    np.testing.assert_allclose(features[:, 0], (since - since.mean()) / since.std())
    turn = 2 * math.pi * np.array([day.timetuple().tm_yday - 1 for day in days]) / 365.2425
    week = 2 * math.pi * np.array([day.weekday() for day in days]) / 7
    np.testing.assert_allclose(features[:, 1:], np.stack([np.sin(turn), np.cos(turn), np.sin(week), np.cos(week)], 1))


def test_times_add_a_place_in_the_day_and_a_missing_date_is_at_none():
    column = Date.learn("at", ["2024-01-01T06:00", "2024-01-03T18:00", ""], "ISO")
    features = column.encode(["2024-01-01T06:00", ""]).features
    assert len(column.features) == features.shape[1] == 8
    np.testing.assert_allclose(features[0, 5:7], [1, 0], atol=1e-12)  # six o'clock is a quarter of the circle
    assert features[1, 1:7].tolist() == [0] * 6 and features[:, 7].tolist() == [0, 1]


def test_each_category_has_a_place_and_rare_unseen_and_missing_ones_have_theirs():
    column = Category.learn("city", ["Oslo", "Oslo", "Bergen", "Bergen", "Moss", "?"])
    assert column.features == ["city = Bergen", "city = Oslo", "city is another", "city is missing"]
    encoded = column.encode(["Bergen", "Oslo", "Moss", "Paris", ""])
    assert encoded.features.argmax(1).tolist() == [0, 1, 2, 2, 3] and (encoded.features.sum(1) == 1).all()
    assert encoded.unseen.tolist() == [False, False, False, True, False]  # Moss was seen, once


def test_no_more_than_fifty_categories_have_places_and_they_are_the_commonest():
    texts = [f"c{i}" for i in range(80) for _ in range(2 + (i < 50))]
    column = Category.learn("c", texts)
    assert column.categories == tuple(sorted(f"c{i}" for i in range(50))) and len(column.rare) == 30


def test_a_missing_category_where_training_had_none_is_at_no_place():
    assert Category.learn("c", ["a", "a", "b", "b"]).encode([""]).features.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    "column",
    [
        Numeric.learn("x", ["1", "", "3"]),
        Date.learn("d", ["31.01.2024", "01.02.2024"], "%d.%m.%Y"),
        Category.learn("c", ["<script>alert(1)</script>", "<script>alert(1)</script>", "b"]),
    ],
)
def test_a_column_survives_json(column):
    assert from_data(json.loads(json.dumps(as_data(column)))) == column
