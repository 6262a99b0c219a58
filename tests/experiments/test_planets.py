"""The study of planetary systems from summaries: its law, its inputs, its scores, and its stored page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import plausible as pl
from plausible.core.likelihoods.distributions import TruncatedNormal
from plausible.core.predictive import Predictive
from plausible.datasets import PlanetSystems
from plausible.datasets.planets import FEATURES
from plausible.experiments import planets, registry, tables
from plausible.experiments.planet_baselines import fit_residuals, petit_baseline, shadow_baseline, trees_baseline
from plausible.experiments.planet_features import FeatureScale, planet_columns
from plausible.experiments.planet_recorded_time import (
    Forecast,
    forecast_scores,
    observed_coverage,
    recorded_moments,
    spread_by_time,
    time_likelihood,
)
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Store

ROOT = Path(__file__).parents[2]


def made_up_systems(count=600, seed=0):
    """Log10 times are 6.5 + 1.5 log(EMcrossnear / 0.1) with chaos of 0.5, and some features are missing."""
    rng = np.random.default_rng(seed)
    features = np.exp(rng.normal(size=(count, len(FEATURES))))
    for name in ("knear", "kfar", "stableinshortintegration"):
        features[:, FEATURES.index(name)] = rng.integers(1, 3, count)
    near = FEATURES.index("EMcrossnear")
    features[:, near] = 0.1 * np.exp(rng.normal(size=count))
    quiet = 6.5 + 1.5 * np.log(features[:, near] / 0.1)
    times, shadows = (np.clip(quiet + 0.5 * rng.normal(size=count), 4.0, 9.0) for _ in range(2))
    features[rng.random(count) < 0.2, FEATURES.index("MMRstrengthfar")] = np.nan
    tensor = lambda a: torch.tensor(a, dtype=torch.float64)  # noqa: E731
    return PlanetSystems(
        name="made up",
        runs=tuple(map(str, range(count))),
        masses=tensor(10 ** rng.uniform(-7, -4, (count, 3))),
        period_ratios=tensor(rng.uniform(1.1, 2.0, (count, 2))),
        separations=tensor(np.empty((count, 0))),
        elements=tensor(np.empty((count, 3, 0))),
        features=tensor(features),
        feature_names=FEATURES,
        resonances=tensor(np.empty((count, 0))),
        log10_time=tensor(times),
        survived=torch.from_numpy(times >= 9),
        shadow_log10_time=tensor(shadows),
        shadow_survived=torch.from_numpy(shadows >= 9),
        censored_at=9.0,
    )


@pytest.fixture
def made_up(monkeypatch):
    """The study on made-up systems, whatever set it asks for."""

    def load(name, root, limit):
        systems = made_up_systems(seed=0 if name == "resonant" else 1)
        return systems if limit is None else systems.take(torch.arange(min(limit, len(systems))))

    for cached in (planets.load_parts, planets.fit_network, planets.fit_baseline):
        cached.cache_clear()
    monkeypatch.setattr(planets, "load_systems", load)
    yield
    for cached in (planets.load_parts, planets.fit_network, planets.fit_baseline):
        cached.cache_clear()


def forecast_of(centres, scales, weights=None):
    """A forecast whose draws (S, N) are normal with these centres and scales."""
    centres, scales = torch.tensor(np.array(centres)), torch.tensor(np.array(scales))
    outputs = torch.stack([centres, torch.log(torch.expm1(scales))], -1)
    return Forecast(predictive=Predictive(outputs, time_likelihood(), weights=weights))


# --- the law of a recorded time ---


@pytest.mark.parametrize(
    ("centre", "scale"),
    [(6.5, 0.5), (4.1, 2.0), (8.9, 1.0), (12.0, 1.5), (30.0, 0.3), (0.0, 1.0), (-20.0, 3.0), (-60.0, 20.0), (4.0, 5.0)],
)
def test_moments_of_a_recorded_time_are_those_of_numerical_integration(centre, scale):
    law = stats.truncnorm((4 - centre) / scale, np.inf, loc=centre, scale=scale)
    points = np.linspace(4, 9, 12)

    def moment(power):
        parts = [
            integrate.quad(lambda t: t**power * law.pdf(t), a, b)[0] for a, b in zip(points, points[1:], strict=False)
        ]
        return sum(parts) + 9**power * law.sf(9)

    mean, variance = recorded_moments(
        TruncatedNormal(torch.tensor(centre, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64), 4.0)
    )
    assert float(mean) == pytest.approx(moment(1), rel=1e-6)
    assert float(variance) == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-4, abs=1e-8)


def test_a_normal_that_is_very_far_below_is_an_exponential_law_above_the_shortest_time():
    # A rate of one in 2 dex, cut at 5: mean 2 (1 - e^-2.5); a law that the record cuts, and one that it does not.
    for length in (2.0, 0.05):
        scale = 1e6
        law = TruncatedNormal(torch.tensor(4 - scale**2 / length, dtype=torch.float64), torch.tensor(scale), 4.0)
        mean, variance = (float(moment) for moment in recorded_moments(law))
        cut = np.exp(-5 / length)
        second = 2 * length**2 * (1 - cut) - 10 * length * cut
        assert mean == pytest.approx(4 + length * (1 - cut), rel=1e-4)
        assert variance == pytest.approx(second - (length * (1 - cut)) ** 2, rel=1e-3)


def test_the_parts_of_the_uncertainty_add_up_to_the_variance_of_the_mixture():
    forecast = forecast_of([[5.0, 8.5], [7.0, 9.5]], [[0.5, 1.0], [1.5, 0.4]])
    rng = np.random.default_rng(0)
    drawn = []
    for centres, scales in (((5.0, 8.5), (0.5, 1.0)), ((7.0, 9.5), (1.5, 0.4))):
        a = (4 - np.array(centres)) / scales
        drawn.append(stats.truncnorm(a, np.inf, centres, scales).rvs((400_000, 2), random_state=rng).clip(max=9))
    drawn = np.concatenate(drawn)
    total = (forecast.aleatoric + forecast.epistemic).numpy()
    # The standard error of a variance over 800,000 draws is near 0.2 %.
    np.testing.assert_allclose(total, drawn.var(0), rtol=0.01)
    np.testing.assert_allclose(forecast.expected.numpy(), drawn.mean(0), atol=0.01)
    np.testing.assert_allclose(forecast.survival.numpy(), (drawn == 9).mean(0), atol=0.003)
    np.testing.assert_allclose(forecast.quantile(0.16).numpy(), np.quantile(drawn, 0.16, axis=0), atol=0.01)


def test_a_quantile_beyond_the_record_is_at_its_end():
    assert float(forecast_of([[12.0]], [[0.5]]).quantile(0.16)) == pytest.approx(9.0, abs=1e-6)


def test_a_calibrated_forecast_covers_what_it_promises_however_many_are_censored():
    rng = np.random.default_rng(1)
    centres, scales = rng.uniform(5, 11, 20_000), rng.uniform(0.3, 1.5, 20_000)
    a = (4 - centres) / scales
    times = torch.tensor(stats.truncnorm(a, np.inf, centres, scales).rvs(random_state=rng)).clamp(max=9.0)
    assert 0.3 < float((times == 9).double().mean()) < 0.6
    observed = observed_coverage(forecast_of([centres], [scales]), times, [0.3, 0.68, 0.95])
    # A share of 20,000 has a standard error of at most 0.0035.
    np.testing.assert_allclose(observed, [0.3, 0.68, 0.95], atol=0.012)


def test_intervals_that_are_too_narrow_cover_too_little():
    rng = np.random.default_rng(1)
    times = torch.tensor(rng.normal(6.5, 0.5, 4000))
    assert observed_coverage(forecast_of([np.full(4000, 6.5)], [np.full(4000, 0.25)]), times, [0.68])[0] < 0.45


def test_scores_are_those_of_independent_formulas():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(2)
    centres, scales = rng.uniform(5, 10, (3, 200)), rng.uniform(0.3, 1.5, (3, 200))
    times = np.clip(centres.mean(0) + rng.normal(size=200), 4.1, 9.0)
    scores = forecast_scores(forecast_of(centres, scales), torch.tensor(times))
    laws = stats.truncnorm((4 - centres) / scales, np.inf, centres, scales)
    lives = times >= 9
    likelihood = np.where(lives, laws.sf(9), laws.pdf(times)).mean(0)
    assert scores["nll"] == pytest.approx(-np.log(likelihood).mean(), rel=1e-6)
    assert scores["auc"] == pytest.approx(roc_auc_score(lives, laws.sf(9).mean(0)), rel=1e-9)
    points, shares = np.polynomial.legendre.leggauss(60)
    expected = 4 + 2.5 * sum(
        share * laws.sf(6.5 + 2.5 * point).mean(0) for point, share in zip(points, shares, strict=True)
    )
    error = (expected - times)[~lives]
    assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
    assert scores["bias"] == pytest.approx(error.mean(), rel=1e-4)


def test_chaos_is_the_spread_of_a_time_about_the_systems_own_mean():
    rng = np.random.default_rng(3)
    quiet = rng.uniform(5, 7, 20_000)
    times, shadows = (torch.tensor(quiet + 0.3 * rng.normal(size=20_000)) for _ in range(2))
    told = spread_by_time(forecast_of([quiet], [np.full(20_000, 0.3)]), times, shadows, bins=4)
    np.testing.assert_allclose(told["chaos"], 0.3, rtol=0.05)  # 5,000 differences a bin: 1 %
    np.testing.assert_allclose(told["aleatoric"], 0.3, rtol=0.01)
    assert told["epistemic"] == [0.0] * 4 and told["expected"] == sorted(told["expected"])


# --- inputs ---


def test_inputs_are_standardised_by_the_training_part_and_missing_ones_are_flagged():
    columns = planet_columns(made_up_systems())
    scale = FeatureScale.of(columns[:400])
    inputs = scale.inputs(columns)
    assert torch.isfinite(inputs).all() and inputs.shape == (600, 24 + 1)  # one column has holes
    far = FEATURES.index("MMRstrengthfar")
    assert scale.flagged == (far,)
    absent = columns[:, far].isnan()
    assert torch.equal(inputs[:, -1].bool(), absent) and (inputs[absent, far] == 0).all()
    np.testing.assert_allclose(inputs[:400, 0].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(inputs[:400, 0].std(correction=0), 1, rtol=1e-4)
    assert abs(float(inputs[400:, 0].mean())) > 1e-4  # the rest had no say


def test_columns_that_are_missing_together_share_one_flag():
    columns = planet_columns(made_up_systems())
    columns[:50, :3] = torch.nan
    columns[50:60, 4] = torch.nan
    assert FeatureScale.of(columns).flagged == (0, 4, FEATURES.index("MMRstrengthfar"))


def test_a_shift_moves_inputs_and_not_flags():
    columns = planet_columns(made_up_systems())
    scale = FeatureScale.of(columns)
    moved = scale.inputs(columns, torch.tensor(2.0)) - scale.inputs(columns)
    torch.testing.assert_close(moved[:, :24], torch.full_like(moved[:, :24], 2.0))
    assert (moved[:, 24:] == 0).all()


def test_a_column_without_a_single_value_is_refused():
    with pytest.raises(ValueError, match="column 3 has no value in the training part"):
        FeatureScale.of(torch.tensor([[1.0, 2.0, 3.0, torch.nan]] * 4))


def test_the_real_sets_become_finite_inputs_of_one_width(data_dir):
    resonant = planet_columns(pl.datasets.three_planets("resonant", data_dir))
    scale = FeatureScale.of(resonant)
    for name in ("resonant", "KOI-1576"):
        inputs = scale.inputs(planet_columns(pl.datasets.three_planets(name, data_dir)))
        assert torch.isfinite(inputs).all() and inputs.shape[1] == 30


# --- baselines ---


def test_the_normal_around_an_estimate_is_the_most_likely_one():
    rng = np.random.default_rng(4)
    estimate = torch.tensor(rng.uniform(4.5, 9, 6000))
    centre = 6.5 + 0.3 + 1.4 * (estimate - 6.5)
    law = stats.truncnorm((4 - centre.numpy()) / 0.7, np.inf, centre.numpy(), 0.7)
    times = torch.tensor(law.rvs(random_state=rng)).clamp(max=9.0)
    offset, slope, raw = fit_residuals(estimate, times).tolist()
    assert (offset, slope, np.logaddexp(0, raw)) == pytest.approx((0.3, 1.4, 0.7), abs=0.05)


def test_trees_and_shadows_find_the_chaos_of_made_up_systems():
    systems = made_up_systems(900)
    train, validation, test = (systems.take(torch.arange(a, b)) for a, b in ((0, 500), (500, 700), (700, 900)))
    shadow = forecast_scores(shadow_baseline(validation)(test), test.log10_time)
    trees = forecast_scores(trees_baseline(train, validation, 0)(test), test.log10_time)
    petit = forecast_scores(petit_baseline(validation)(test), test.log10_time)
    assert shadow["rmse"] == pytest.approx(0.5 * 2**0.5, rel=0.15)  # two times, each with chaos of 0.5
    assert 0.45 < trees["rmse"] < 0.75 and trees["auc"] > 0.9
    assert petit["rmse"] > 2 * trees["rmse"] and trees["nll"] < petit["nll"]


# --- the study ---


def test_the_study_runs_at_toy_size_and_is_drawn(made_up, tmp_path):
    study = planets.STUDY
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None))
    assert [result.row.name for result in found] == [row.name for row in study.rows] and len(found) == 12
    by_name = {result.row.name: result for result in found}
    assert set(by_name["multiswag"].scores) == set(study.columns)
    assert set(study.columns) - set(by_name["map"].scores) == {"epistemic"}
    assert set(study.columns) - set(by_name["shadow-KOI-1576"].scores) == {"epistemic", "rate"}
    text = tables.page(study, found, picture_name(study))
    for picture in study.pictures:
        path = tmp_path / f"{picture.name}.png"
        picture.draw(by_name, path)
        assert path.stat().st_size > 10_000 and f"planets-{picture.name}.png" in text
    assert "planets-calibration.png" not in tables.page(study, found[:3], picture_name(study))


def test_networks_learn_made_up_systems_and_the_rows_of_another_set_share_them(made_up):
    row = replace(planets.FIRST, full=False, seeds=1, modes=3, draws=3, hidden=(16,), batch_size=64, epochs=40)
    (found, other) = run_rows(planets.STUDY, [row, replace(row, name="other", systems="KOI-1576")], None)
    # Chaos alone is 0.5; a forecast that knows nothing is off by the spread of the times, 1.3. Most inputs are noise.
    assert 0.45 < found.scores["rmse"].mean < 1.0 and found.scores["auc"].mean > 0.9
    assert planets.fit_network.cache_info().misses == 1
    assert found.record["scores"] != other.record["scores"]
    shift = found.record["details"]["shift"]["disagreement"]
    assert shift[-1][1] > 2 * shift[0][1]  # the median disagreement far away, and at home


def test_the_network_has_some_seven_thousand_weights():
    weights = planets.planet_model(planets.FIRST, 30).init()
    assert 6_500 < sum(w.numel() for w in weights.values()) < 7_500


def test_every_row_has_a_stored_result_and_the_page_is_what_they_render():
    results = Store(ROOT / "results", planets.STUDY).read_all()
    assert [result.row.name for result in results] == [row.name for row in planets.STUDY.rows]
    folder = ROOT / "docs" / "studies"
    assert (folder / "planets.md").read_text() == tables.page(planets.STUDY, results, picture_name(planets.STUDY))
    for picture in planets.STUDY.pictures:
        assert (folder / tables.file_name(planets.STUDY, picture)).is_file()


def test_the_stored_results_are_as_good_as_they_should_be():
    stored = Store(ROOT / "results", registry.load("planets"))
    found = {result.row.name: result for result in stored.read_all()}
    multiswag, trees = found["multiswag"].scores, found["gradient-boosted-trees"].scores
    assert found["multiswag"].repetitions >= 3
    assert multiswag["rmse"].mean <= 0.95 and 2.5 * multiswag["rmse"].mean <= found["petit"].scores["rmse"].mean
    assert multiswag["auc"].mean >= 0.95
    spread = {key: np.std(found["gradient-boosted-trees"].record["scores"][key], ddof=1) for key in ("rmse", "auc")}
    assert multiswag["rmse"].mean <= trees["rmse"].mean + spread["rmse"]
    assert multiswag["auc"].mean >= trees["auc"].mean - spread["auc"]
    assert 0.64 <= multiswag["cover68"].mean <= 0.72
    for other in ("map", "deep-ensemble"):
        assert multiswag["nll"].mean < found[other].scores["nll"].mean
