"""From a CSV to a posterior file and back to predictions."""

import csv
import json
import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

import plausible as pl
from plausible.tabular.dataset import table_dataset
from plausible.tabular.fitted import load_table
from plausible.tabular.prediction import predict_table
from plausible.tabular.reading import Table, read_table
from plausible.tabular.training import METHODS, even_batch, fit_table
from plausible.tabular.writing import write_csv

SCRIPT = "<script>alert(1)</script>"


def houses(path, rows=160):
    draw = random.Random(0)
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle, delimiter=";")
        writer.writerow(["area", "city", "sold", "price"])
        for _ in range(rows):
            area, city = draw.gauss(100, 20), draw.choice(["Oslo", "Bergen", SCRIPT])
            price = 5000 + 30 * area + 900 * (city == "Oslo") + draw.gauss(0, 100)
            day = f"{draw.randint(2019, 2023)}-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}"
            writer.writerow(["" if draw.random() < 0.05 else f"{area:.2f}", city, day, f"{price:.1f}"])
    return path


def flowers(path, rows=120):
    draw = random.Random(1)
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["length", "width", "kind"])
        for i in range(rows):
            kind = ("setosa", SCRIPT)[i % 2]
            writer.writerow([f"{draw.gauss(i % 2, 0.4):.3f}", f"{draw.gauss(0, 1):.3f}", kind])
    return path


@pytest.fixture(scope="module")
def house_file(tmp_path_factory):
    return houses(tmp_path_factory.mktemp("houses") / "houses.csv")


@pytest.fixture(scope="module")
def price(house_file):
    return fit_table(read_table(house_file), "price", method="deep-ensemble", epochs=60, seed=2, progress=False)


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    path = flowers(tmp_path_factory.mktemp("flowers") / "flowers.csv")
    return fit_table(read_table(path), "kind", method="swag", epochs=40, progress=False)


def test_numbers_are_learnt_far_better_than_by_their_mean(price):
    assert price.scores["rmse"] < 0.5 * price.scores["spread"]
    assert price.facts["rows"] == {"file": 160, "without target": 0, "train": 128, "test": 32}
    assert price.facts["missing"].keys() == {"area"}


def test_the_scores_of_numbers_are_those_of_the_mixture_of_normals_in_the_units_of_the_file(price, house_file):
    data = table_dataset(house_file, "price", seed=2)
    predictive = price.posterior.predict(data.x_test)
    means = (predictive.outputs[..., 0].double() * data.target_scale + data.target_mean).numpy()
    means = means.mean(0) + price.calibration.factor * (means - means.mean(0))
    scales = (predictive.unknowns["scale"].double() * data.target_scale).numpy().reshape(-1, 1)
    scales = scales * price.calibration.factor
    y = (data.y_test[:, 0].double() * data.target_scale + data.target_mean).numpy()
    assert price.scores["rmse"] == pytest.approx(np.sqrt(((means.mean(0) - y) ** 2).mean()), rel=1e-4)
    density = stats.norm.pdf(y, means, scales).mean(0)
    assert price.scores["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-4)
    below = stats.norm.cdf(y, means, scales).mean(0)
    for line in price.scores["calibration"]:
        inside = np.abs(below - 0.5) <= line["stated"] / 2
        assert line["found"] == pytest.approx(inside.mean(), abs=1e-9)
    assert price.scores["coverage"] == price.scores["calibration"][2]["found"]


def test_predictions_are_in_the_units_of_the_file_and_say_why_they_are_unsure(price, house_file):
    table = read_table(house_file)
    found = predict_table(price, table)
    columns = {
        name: np.array(values, dtype=float) for name, values in found.columns.items() if name != "far_from_training"
    }
    assert list(found.columns) == [
        "mean", "std", "lower_90", "upper_90", "epistemic_std", "aleatoric_std", "far_from_training",
    ]  # fmt: skip
    np.testing.assert_allclose(
        columns["std"] ** 2, columns["epistemic_std"] ** 2 + columns["aleatoric_std"] ** 2, rtol=1e-4
    )
    truth = np.array(table.columns["price"], dtype=float)
    assert np.corrcoef(columns["mean"], truth)[0, 1] > 0.9
    assert (columns["lower_90"] < columns["mean"]).all() and (columns["mean"] < columns["upper_90"]).all()
    # A mixture of nearly equal normals: its interval is about 1.645 deviations to each side.
    ratio = (columns["upper_90"] - columns["lower_90"]) / columns["std"]
    assert np.median(ratio) == pytest.approx(2 * 1.645, rel=0.05)


def test_a_saved_file_predicts_the_same_to_the_bit_and_needs_no_code(price, house_file, tmp_path):
    price.save(tmp_path / "price.plausible")
    table = read_table(house_file)
    again = load_table(tmp_path / "price.plausible")
    assert predict_table(again, table).columns == predict_table(price, table).columns
    assert (again.schema, again.target, again.facts, again.scores, again.calibration) == (
        price.schema,
        price.target,
        price.facts,
        price.scores,
        price.calibration,
    )
    notes = pl.load(tmp_path / "price.plausible").notes
    assert json.loads(json.dumps(notes)) == notes and notes["table"]["target"]["name"] == "price"


def test_a_posterior_without_a_table_is_refused_for_prediction(tmp_path):
    model = pl.BayesianModel(pl.networks.MLP(1), pl.likelihoods.Normal())
    pl.fit(model, (torch.zeros(4, 1), torch.zeros(4, 1)), pl.MAP(), steps=1, progress=False).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="is a posterior without a table"):
        load_table(tmp_path / "plain")


def test_a_row_far_away_or_with_an_unseen_category_is_flagged_and_less_sure(price):
    rows = {"area": ["100", "100", "900"], "city": ["Oslo", "Rome", "Oslo"], "sold": ["2021-05-05"] * 3}
    found = predict_table(price, Table("new.csv", rows, "CSV", ","))
    assert found.columns["far_from_training"] == ["no", "yes", "yes"] and found.far == 2
    assert "city: 1 row with a category that training never saw (such as 'Rome')" in found.remarks[0]
    usual, _, far = map(float, found.columns["epistemic_std"])
    assert far > 3 * usual


def test_a_single_row_is_predicted_as_among_others(price):
    rows = {"area": ["100", "", "80"], "city": ["Oslo", SCRIPT, "Bergen"], "sold": ["2021-05-05", "", "2020-01-01"]}
    table = Table("new.csv", rows, "CSV", ",")
    together, alone = predict_table(price, table).columns, predict_table(price, table.rows([1])).columns
    assert [float(v[1]) for k, v in together.items() if k != "far_from_training"] == pytest.approx(
        [float(v[0]) for k, v in alone.items() if k != "far_from_training"], rel=1e-4
    )


def test_classes_come_with_probabilities_and_their_names_are_kept_as_text(kind, tmp_path):
    table = flowers(tmp_path / "flowers.csv")
    found = predict_table(kind, read_table(table)).columns
    assert list(found) == [
        "predicted", f"probability of {SCRIPT}", "probability of setosa",
        "entropy", "aleatoric_entropy", "epistemic_entropy", "far_from_training",
    ]  # fmt: skip
    p = np.array(found[f"probability of {SCRIPT}"], dtype=float)
    np.testing.assert_allclose(p + np.array(found["probability of setosa"], dtype=float), 1, atol=1e-5)
    assert found["predicted"] == [SCRIPT if q > 0.5 else "setosa" for q in p]
    np.testing.assert_allclose(np.array(found["entropy"], dtype=float), stats.entropy([p, 1 - p]), atol=1e-5)
    assert kind.scores["accuracy"] > 0.75
    write_csv(tmp_path / "out.csv", found)
    assert read_table(tmp_path / "out.csv").columns == {k: list(map(str, v)) for k, v in found.items()}


def test_the_reliability_table_counts_every_held_out_row(kind):
    lines = kind.scores["calibration"]
    rows = sum(line["rows"] for line in lines)
    assert rows == kind.facts["rows"]["test"] == 24
    assert sum(line["found"] * line["rows"] for line in lines) / rows == pytest.approx(kind.scores["accuracy"])


def test_the_same_seed_gives_the_same_scores_and_another_gives_others(house_file):
    table = read_table(house_file)
    first, again, other = (
        fit_table(table, "price", method="map", epochs=5, seed=seed, progress=False).scores for seed in (0, 0, 1)
    )
    assert first == again and first != other


def test_nothing_held_out_means_nothing_known(house_file):
    fitted = fit_table(read_table(house_file), "price", method=pl.MAP(), epochs=2, test_share=0, progress=False)
    assert fitted.scores is None and fitted.facts["rows"]["train"] == 160


def test_every_method_has_settings_for_tables():
    from plausible.report.catalogue import ENTRIES

    own = {name: type(method).__name__ for name, method in METHODS.items()}
    assert own.items() <= {entry.name: entry.class_name for entry in ENTRIES}.items()
    with pytest.raises(ValueError, match="method must be one of map, .* got 'magic'"):
        fit_table(Table("t", {"y": ["1"]}, "CSV"), "y", method="magic")


def test_the_data_set_of_a_table_has_its_units_names_and_split(house_file, price):
    data = table_dataset(house_file, "price", seed=2)
    assert (data.name, data.task, data.classes) == ("houses", "regression", ())
    assert data.feature_names == tuple(price.schema.features) and data.x_train.shape == (128, len(data.feature_names))
    assert (data.target_mean, data.target_scale) == (price.target.mean, price.target.scale)
    assert data.y_train.shape == (128, 1) and math.isclose(float(data.y_train.mean()), 0, abs_tol=1e-5)
    assert data.y_test.std() > 0 and data.x_train[:, 0].std(correction=0) == pytest.approx(1, abs=1e-5)


def test_a_write_that_fails_leaves_the_old_file_and_no_orphan(tmp_path):
    write_csv(tmp_path / "p.csv", {"a": [1]})
    with pytest.raises(ValueError):
        write_csv(tmp_path / "p.csv", {"a": [1, 2], "b": [1]})
    assert (tmp_path / "p.csv").read_text() == "a\n1\n" and [f.name for f in tmp_path.iterdir()] == ["p.csv"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="could not write .*folder"):
        write_csv(tmp_path / "folder", {"a": [1]})
    assert sorted(f.name for f in tmp_path.iterdir()) == ["folder", "p.csv"]


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 197, 1000])
def test_the_batches_of_an_epoch_are_about_as_large(rows):
    size = even_batch(rows)
    batches = math.ceil(rows / size)
    assert size <= 64 and batches == math.ceil(rows / 64)
    assert size - (rows - (batches - 1) * size) < batches  # the last one lacks less than a row of each other's
