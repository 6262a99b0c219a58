"""How sure predictions are, corrected on rows that the network had not seen."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import plausible as pl
from plausible.core.errors import NotSupported
from plausible.core.predictive import Predictive
from plausible.tabular import calibration, training
from plausible.tabular.calibration import Calibration, deal, learn_calibration, spread_factor, stretched, temperature
from plausible.tabular.fitted import load_table
from plausible.tabular.prediction import predict_table
from plausible.tabular.reading import Table
from plausible.tabular.training import fit_table

MEANS, SCALES = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 0.5])


def mixture(rows: int = 1) -> Predictive:
    """Three normals, the same at every row."""
    outputs = MEANS.reshape(3, 1, 1).expand(3, rows, 1)
    return Predictive(outputs, pl.likelihoods.Normal(scale="learn"), unknowns={"scale": SCALES})


def logits(values: torch.Tensor) -> Predictive:
    return Predictive(values.unsqueeze(0), pl.likelihoods.Categorical())


def curve(rows: int) -> Table:
    """A rough function of four columns, and noise."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * draw.normal(size=rows)
    texts = {f"x{i}": [f"{value:.4f}" for value in x[:, i]] for i in range(4)}
    return Table("curve.csv", {**texts, "y": [f"{value:.4f}" for value in y]}, "CSV", ",")


# --- what a factor does ---


def test_a_stretch_multiplies_every_distance_from_the_mean_and_keeps_the_parts_of_the_variance():
    raw, wide = mixture(), stretched(mixture(), 1.7)
    torch.testing.assert_close(wide.mean, raw.mean)
    for part in ("total", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(wide, part), 1.7**2 * getattr(raw, part))
    for before, after in zip(raw.interval(0.9), wide.interval(0.9), strict=True):
        torch.testing.assert_close(after, raw.mean + 1.7 * (before - raw.mean), atol=1e-4, rtol=1e-4)
    centre = MEANS.mean()
    density = stats.norm.pdf(2.5, centre + 1.7 * (MEANS - centre), 1.7 * SCALES).mean()
    assert float(wide.log_prob(torch.tensor([[2.5]]))) == pytest.approx(math.log(density), rel=1e-5)


def test_a_temperature_divides_the_logits_of_every_network():
    raw = Predictive(torch.tensor([[[2.0, 0.0]], [[0.0, 4.0]]]), pl.likelihoods.Categorical())
    cool = Calibration(task="classification", factor=2.0, rows=1).apply(raw)
    expected = (1 / (1 + math.exp(-1)) + 1 / (1 + math.exp(2))) / 2
    assert float(cool.probs[0, 0]) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(cool.total, cool.aleatoric + cool.epistemic)


# --- finding it ---


def test_the_stretch_is_that_order_statistic_with_which_the_next_value_is_inside_nine_times_of_ten():
    one = Predictive(torch.zeros(1, 49, 1), pl.likelihoods.Normal(scale="learn"), unknowns={"scale": torch.ones(1)})
    y = torch.from_numpy(np.random.default_rng(0).standard_t(2, size=(49, 1))).float()
    expected = np.sort(np.abs(y.numpy().ravel()))[44] / stats.norm.ppf(0.95)  # the 45th of 49: 0.9 · 50
    assert spread_factor([one], [y]) == pytest.approx(expected, rel=1e-4)


def test_intervals_stretched_by_it_hold_nine_tenths_of_new_values_however_heavy_the_tails():
    draw = np.random.default_rng(1)
    own = Predictive(torch.zeros(1, 49, 1), pl.likelihoods.Normal(scale="learn"), unknowns={"scale": torch.ones(1)})
    shares = []
    for _ in range(40):
        factor = spread_factor([own], [torch.from_numpy(draw.standard_t(2, size=(49, 1))).float()])
        shares.append(1 - 2 * stats.t.sf(factor * stats.norm.ppf(0.95), 2))
    assert np.mean(shares) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 51 / 40))  # of a Beta(45, 5)


def test_the_interval_of_a_lopsided_mixture_is_stretched_to_each_side_by_its_own_width():
    raw = mixture(rows=2)
    lower, upper = raw.interval(0.9)
    y = torch.stack([raw.mean[0] + 1.5 * (upper - raw.mean)[0], raw.mean[1] + 2.5 * (lower - raw.mean)[1]])
    assert spread_factor([raw], [y]) == pytest.approx(2.5, rel=1e-4)


def test_the_temperature_of_labels_is_the_one_they_were_drawn_with():
    values = 3 * torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.multinomial(torch.softmax(values / 2, 1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    assert temperature([logits(values[:1000]), logits(values[1000:])], [labels[:1000], labels[1000:]]) == pytest.approx(
        2, rel=0.08
    )


def test_labels_that_are_all_right_do_not_ask_for_certainty():
    values = 3 * torch.eye(3).repeat(20, 1)
    found = temperature([logits(values)], [torch.arange(3).repeat(20)])
    assert calibration.COLDEST * 2 < found < 1
    # What Platt's smoothed labels ask for: a right answer with probability 1 − 2ε/3, where ε = 1/62.
    right = float(torch.softmax(values[0] / found, 0)[0])
    assert right == pytest.approx(1 - 2 / 62 / 3, abs=1e-4)


# --- rows that a network had not seen ---


def test_folds_are_as_large_as_the_held_out_part_share_no_row_and_keep_the_shares_of_classes():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 12)
    folds = deal(labels, 25, "classification", seed=3)
    assert [len(fold) for fold in folds] == [25] * 4 and len(torch.cat(folds).unique()) == 100
    assert all(abs(int((labels[fold] == 1).sum()) - 7.5) <= 1.5 for fold in folds)
    assert all(torch.equal(a, b) for a, b in zip(folds, deal(labels, 25, "classification", seed=3), strict=True))


@pytest.mark.parametrize(
    ("rows", "held_out", "sizes"),
    [
        (80, 20, [20] * 4),
        (90, 10, [10] * 5),
        (53, 0, [10] * 5),
        (50, 50, [50]),
        (40_000, 10_000, [1250] * 4),
        (3, 0, []),
    ],
)
def test_no_more_rows_are_predicted_than_are_needed_to_know_a_coverage(rows, held_out, sizes):
    assert [len(fold) for fold in deal(torch.zeros(rows, 1), held_out, "regression", seed=0) if len(fold)] == sizes


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("held_out", [0, 13])
def test_every_fold_is_predicted_by_networks_that_never_saw_it_on_as_many_rows(monkeypatch, one_by_one, held_out):
    seen = []

    def several(model, data, *rest, **settings):
        if one_by_one:
            raise NotSupported("not several at once")
        seen.extend(data[::2])  # two networks each
        return pl.fit_many(model, data, *rest, **settings)

    def one(model, data, *rest, **settings):
        seen.append(data)
        return pl.fit(model, data, *rest, **settings)

    monkeypatch.setattr(calibration, "fit_many", several)
    monkeypatch.setattr(calibration, "fit", one)
    x = torch.arange(53.0 + held_out).unsqueeze(1)
    model = pl.BayesianModel(pl.networks.MLP(1, (4,)), pl.likelihoods.Normal(scale="learn"))
    found = learn_calibration(
        model, (x[:53], x[:53]), (x[53:], x[53:]), pl.DeepEnsemble(members=2, base=pl.MAP(learning_rate=0.01)),
        "regression", num_samples=8, seed=1, steps=3, batch_size=16, progress=False,
    )  # fmt: skip
    folds = deal(x[:53], held_out, "regression", seed=1)
    assert found.rows == sum(map(len, folds)) and found.factor > 0 and len(seen) == len(folds)
    for fold, (own_x, own_y) in zip(folds, seen, strict=True):
        used = own_x.int().ravel().tolist()
        assert set(used) == set(range(53 + held_out)) - set(fold.tolist()) and len(used) == len(set(used))
        assert torch.equal(own_x, own_y) and len(used) == (53 if held_out else 53 - len(fold))


def test_too_few_rows_are_left_as_they_are():
    fitted = fit_table(curve(34), "y", method="map", epochs=2, progress=False)
    assert fitted.calibration is None and "uncalibrated" not in fitted.scores


def test_a_network_that_knows_its_rows_by_heart_learns_how_unsure_it_should_be(monkeypatch):
    monkeypatch.setattr(training, "NUMBER_PRIOR", pl.priors.Normal(scale=10.0))  # nothing holds it back
    every = curve(1000)
    fitted = fit_table(every.rows(range(150)), "y", method="map", epochs=200, progress=False)
    new = every.rows(range(150, 1000))
    before, after = inside(replace(fitted, calibration=None), new), inside(fitted, new)
    assert fitted.calibration.factor > 1.3 and before < 0.8
    assert after == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 121))  # what 120 rows know


def inside(fitted, table: Table) -> float:
    found = predict_table(fitted, table).columns
    lower, upper, y = (np.array(v, dtype=float) for v in (found["lower_90"], found["upper_90"], table.columns["y"]))
    return ((lower <= y) & (y <= upper)).mean()


# --- in the file ---


def test_the_file_holds_it_and_a_file_without_one_is_read_too(tmp_path):
    fitted = fit_table(curve(60), "y", method="map", epochs=5, progress=False)
    fitted.save(tmp_path / "new")
    assert load_table(tmp_path / "new").calibration == fitted.calibration
    posterior = pl.load(tmp_path / "new")
    table = posterior.notes["table"]
    posterior.notes = {"table": {k: v for k, v in table.items() if k != "calibration"} | {"version": 1}}
    posterior.save(tmp_path / "old")
    assert load_table(tmp_path / "old").calibration is None


def test_what_it_changed_on_held_out_rows_is_told():
    table = curve(60)
    fitted = fit_table(table, "y", method="map", epochs=20, progress=False)
    raw = fit_table(table, "y", method="map", epochs=20, calibrate=False, progress=False)
    assert raw.calibration is None and "uncalibrated" not in raw.scores
    before = fitted.scores["uncalibrated"]
    assert {name: raw.scores[name] for name in before} == before and fitted.scores["nll"] != before["nll"]
    assert fitted.scores["rmse"] == pytest.approx(before["rmse"], rel=1e-6)
