"""The study of time series of planetary systems: its scores, at toy size, and its stored page."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from plausible.experiments import registry, tables
from plausible.experiments.petit import petit_log10_time
from plausible.experiments.planet_series_scores import coverage, earliest, time_scores
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Store

ROOT = Path(__file__).parents[2]
STUDY = registry.load("planets-series")


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    """A hundred widely spaced systems in the published format, and six of five planets."""
    root, rng, count = tmp_path_factory.mktemp("data"), np.random.default_rng(0), 100
    folder = root / "planets" / "three_planet_random"
    folder.mkdir(parents=True)
    masses = 10 ** rng.uniform(-7, -5, (count, 3))
    axes = np.cumprod(np.column_stack([np.ones(count), rng.uniform(1.2, 1.4, (count, 2))]), axis=1)
    angles = rng.uniform(0, 6, (3, count, 3))
    elements = [masses, axes, rng.uniform(0, 0.02, (count, 3)), rng.uniform(0, 0.02, (count, 3)), *angles]
    columns = [f"{name}{planet}" for name in ("m", "a", "e", "inc", "pomega", "Omega", "f") for planet in "123"]
    np.savez(folder / "initial_conditions.npz", columns=np.array(columns), values=np.concatenate(elements, axis=1))
    times = 10 ** rng.uniform(4.1, 10, count)
    lines = [",runstring,instability_time,shadow_instability_time,Stable,Pratio21,Pratio32,beta12,beta23"]
    for i in range(count):
        ratios = (axes[i, 1:] / axes[i, :-1]) ** 1.5
        cells = [i, f"{i}.bin", min(times[i], 1e9), 1e9, times[i] >= 1e9, *ratios, 10, 10]
        lines.append(",".join(map(str, cells)))
    with gzip.open(folder / "outcomes.csv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    (root / "planets/five_planet").mkdir()
    np.savez(
        root / "planets/five_planet/five_planet.npz",
        delta=np.linspace(8, 12, 6),
        a=np.cumprod(np.column_stack([np.ones(6), np.full((6, 4), 1.25)]), axis=1),
        f=rng.uniform(0, 6, (6, 5)),
        t_exit=np.array([1e5, 1e6, 1e7, 1e8, 1e10, 1e10]),
        stop=np.array([1, 1, 1, 1, 0, 0], np.int8),
        m_planet=np.array(3e-6),
        m_star=np.array(1.0),
    )  # fmt: skip
    return root


def test_every_row_runs_at_toy_size(made_up_data, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUSIBLE_CACHE", str(tmp_path))
    found = {r.row.name: r for r in run_rows(STUDY, [STUDY.toy(row) for row in STUDY.rows], None, root=made_up_data)}
    assert list(found) == [row.name for row in STUDY.rows]
    for row in STUDY.rows:
        scores = found[row.name].scores
        assert ("five_rmse" in scores) == (row.five > 0) and 0 <= scores["auc"].mean <= 1
        assert math.isfinite(scores["nll"].mean)
    for picture in STUDY.pictures:
        picture.draw(found, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize("level", [0.68, 0.95])
def test_coverage_is_the_level_of_a_calibrated_forecast_however_many_are_censored(level):
    rng = np.random.default_rng(0)
    mean = rng.normal(8, 2, 40_000)
    truth, limit = mean + rng.normal(size=40_000), 9.0
    below = torch.tensor(
        [0.5 * math.erfc(-(min(t, limit) - m) / math.sqrt(2)) for t, m in zip(truth, mean, strict=True)]
    )
    censored = torch.tensor(truth >= limit)
    assert 0.2 < float(censored.double().mean()) < 0.5
    # Four standard errors of a share of 40,000.
    assert coverage(below, censored, level) == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 40_000))
    narrow = coverage(((below - 0.5) * 1.5 + 0.5).clamp(0, 1), censored, level)
    assert narrow < level - 0.05


def test_scores_are_those_of_their_definitions():
    rng = np.random.default_rng(1)
    truth = np.minimum(rng.uniform(4, 11, 60), 9.0)
    samples = truth + rng.normal(0.3, 1.0, (500, 60))
    found = time_scores(torch.tensor(samples), torch.tensor(truth))
    met = truth < 9
    error = (np.clip(samples, 4, 9).mean(0) - truth)[met]
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean())) and found["bias"] == pytest.approx(error.mean())
    early = np.array([np.clip(s[s < 9], 4, 9).mean() for s in samples.T])
    assert found["met_rmse"] == pytest.approx(np.sqrt(((early - truth)[met] ** 2).mean()))
    assert found["auc"] == pytest.approx(roc_auc_score(~met, (samples >= 9).mean(0)))
    given = time_scores(torch.tensor(samples), torch.tensor(truth), torch.full((60,), 20.0))
    assert given["rmse"] == pytest.approx(np.sqrt(((9 - truth)[met] ** 2).mean()))


def test_the_earliest_trio_counts_in_the_orbits_of_the_innermost_planet():
    samples = torch.tensor([[5.0, 4.0, 6.0, 7.0], [4.5, 8.0, 6.5, 5.0]])  # two systems of two trios
    delays = torch.tensor([[0.0, 0.5], [0.0, 0.3]], dtype=torch.float64)
    met = torch.tensor([math.inf, 100.0], dtype=torch.float64)
    expected = torch.tensor([[4.5, 2.0], [4.5, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(earliest(samples, met, delays), expected)
    alive = earliest(samples, torch.full((2,), math.inf, dtype=torch.float64), delays)
    torch.testing.assert_close(alive[:, 1], torch.tensor([6.0, 5.3], dtype=torch.float64))


def stored():
    return {result.row.name: result for result in Store(ROOT / "results", STUDY).read_all()}


def test_the_rows_that_the_pictures_need_are_stored_with_their_present_settings():
    found = stored()
    assert {"petit", "map", "map-all", "ensemble-all", "multiswag-all"} <= set(found)
    assert {name for picture in STUDY.pictures for name in picture.needs} <= set(found)
    assert found["multiswag-all"].scores["rmse"].mean < 1.12 < 3 < found["petit"].scores["rmse"].mean


def test_the_page_is_what_the_stored_results_render():
    page = (ROOT / "docs" / "studies" / f"{STUDY.name}.md").read_text()
    assert page == tables.page(STUDY, list(stored().values()), picture_name(STUDY))
    assert all((ROOT / "docs" / "studies" / tables.file_name(STUDY, own)).is_file() for own in STUDY.pictures)


def test_the_analytic_estimate_in_the_results_is_that_of_the_formula(data_dir):
    from plausible.experiments.planet_series_data import five_systems

    details = stored()["petit"].record["details"]
    systems = five_systems(data_dir, 300)
    first = petit_log10_time(systems.period_ratios[:, :2].numpy(), systems.masses[:, :3].numpy(), resonance_factor=2.0)
    # Evenly spaced and equal: the inner trio, whose orbits are the shortest, is the first.
    np.testing.assert_allclose(details["five_quantiles"][1], np.minimum(first, 12.0), atol=1e-3)
