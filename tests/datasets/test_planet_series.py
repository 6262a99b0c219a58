"""Short integrations: right, cached, resumable, and cut into trios."""

import math
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from plausible import datasets
from plausible.datasets import planet_series as series_function
from plausible.datasets.locations import cache_folder
from plausible.datasets.planet_integration import CHANNELS, STEP, integrate

module = sys.modules[series_function.__module__]
ELEMENTS = {
    "masses": [1e-5, 2e-5, 1.5e-5],
    "periods": [1.0, 1.45, 2.2],
    "eccentricities": [0.05, 0.03, 0.04],
    "inclinations": [0.02, 0.01, 0.03],
    "longitudes_of_pericentre": [0.3, 2.0, 4.0],
    "longitudes_of_node": [1.0, 2.0, 3.0],
    "true_anomalies": [0.5, 3.5, 5.5],
}


def some_systems(count: int, seed: int = 0) -> datasets.PlanetSystems:
    rng = np.random.default_rng(seed)
    return datasets.own_planets(
        10 ** rng.uniform(-6, -5, (count, 3)), [1.0, 1.5, 2.3], eccentricities=rng.uniform(0, 0.05, (count, 3)),
        true_anomalies=rng.uniform(0, 6, (count, 3)), longitudes_of_pericentre=rng.uniform(0, 6, (count, 3)),
    )  # fmt: skip


def newton_semimajor_axes(elements: np.ndarray, orbits: float, steps: int) -> np.ndarray:
    """By Newton's law and a Runge-Kutta method of order 8: positions from Kepler's ellipses, axes from vis-viva."""
    masses = np.array([1.0, *elements[:, 0]])
    x, v = np.zeros((4, 3)), np.zeros((4, 3))
    for i, (_, a, e, inc, pomega, node, f) in enumerate(elements, 1):
        inner, total = masses[:i].sum(), masses[: i + 1].sum()
        omega = pomega - node
        r, p = a * (1 - e**2) / (1 + e * np.cos(f)), a * (1 - e**2)
        place = r * np.array([np.cos(f), np.sin(f), 0])
        speed = np.sqrt(total / p) * np.array([-np.sin(f), e + np.cos(f), 0])
        turn = _about_z(node) @ _about_x(inc) @ _about_z(omega)
        x[i] = turn @ place + masses[:i] @ x[:i] / inner
        v[i] = turn @ speed + masses[:i] @ v[:i] / inner

    def slope(_, state):
        x, v = state.reshape(2, 4, 3)
        apart = x[None] - x[:, None]
        cubes = (apart**2).sum(-1) ** 1.5 + np.eye(4)
        return np.stack([v, (masses[None, :, None] * apart / cubes[..., None]).sum(1)]).reshape(-1)

    period = 2 * math.pi * elements[0, 1] ** 1.5 / math.sqrt(1 + masses[1])
    times = np.arange(1, steps + 1) / steps * orbits * period
    found = solve_ivp(slope, (0, times[-1]), np.stack([x, v]).reshape(-1), "DOP853", times, rtol=1e-11, atol=1e-12)
    axes = []
    for state in found.y.T:
        x, v = state.reshape(2, 4, 3)
        row = []
        for i in range(1, 4):
            inner = masses[:i].sum()
            dx, dv = x[i] - masses[:i] @ x[:i] / inner, v[i] - masses[:i] @ v[:i] / inner
            row.append(1 / (2 / np.linalg.norm(dx) - dv @ dv / (inner + masses[i])))
        axes.append(row)
    return np.array(axes)


def _about_z(angle):
    return np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])


def _about_x(angle):
    return np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])


def test_semimajor_axes_follow_newtons_law():
    elements = datasets.own_planets(**ELEMENTS).elements[0].numpy()
    orbits = 6 * (144 - 1e-6) * STEP  # a hair before a step's end, where the integrator stops for a look
    track = integrate(elements, orbits=orbits, steps=6)
    expected = newton_semimajor_axes(elements, orbits, 6)
    moved = np.abs(expected / elements[:, 1] - 1).max()
    assert track.met == math.inf and moved > 2e-4
    # WHFast follows a Hamiltonian whose interaction is off by a share of about (2π step)² / 24 = 0.2 %, plus phases.
    np.testing.assert_allclose(track.values[:, :: len(CHANNELS)], expected, rtol=0.02 * moved)


def test_planets_whose_hill_spheres_touch_have_met_and_the_rest_is_filled():
    crossing = datasets.own_planets([1e-4] * 3, [1.0, 1.1, 1.22], true_anomalies=[0.0, 2.0, 4.0])
    track = integrate(crossing.elements[0].numpy(), orbits=2000, steps=2000)
    assert 1 < track.met < 2000
    after = int(track.met) + 1
    assert (track.values[after:] == track.values[after]).all() and np.isfinite(track.values).all()
    assert (track.values[0] != track.values[after]).any()


def test_a_meeting_at_once_is_flagged_with_the_elements_of_the_start(tmp_path):
    touching = datasets.own_planets([1e-4] * 3, [1.0, 1.02, 1.04])
    found = datasets.planet_series(touching, orbits=10, steps=2, cache=tmp_path)
    assert 0 < found.met[0] < 0.1
    np.testing.assert_allclose(found.values[0, 1].reshape(3, 6)[:, 0], touching.elements[0, :, 1], rtol=1e-6)


def test_most_published_times_of_short_lived_systems_are_repeated(data_dir):
    systems = datasets.three_planets("random", data_dir)
    rows = ((systems.log10_time > 0) & (systems.log10_time < 3)).nonzero().flatten()[:60]
    off = [
        abs(
            math.log10(integrate(systems.elements[row].numpy(), orbits=2000, steps=1).met)
            - float(systems.log10_time[row])
        )
        for row in rows.tolist()
    ]
    # Chaos lets the rest differ; with a step of 0.05 periods only a third would be repeated.
    assert np.mean(np.array(off) < 0.01) > 0.5


def test_what_has_been_integrated_is_read_and_not_integrated_again(tmp_path, monkeypatch):
    systems = some_systems(3)
    first = datasets.planet_series(systems, orbits=20, steps=4, cache=tmp_path)
    monkeypatch.setattr(module, "integrate", lambda *_, **__: pytest.fail("integrated again"))
    again = datasets.planet_series(systems, orbits=20, steps=4, cache=tmp_path)
    assert torch.equal(first.values, again.values) and torch.equal(first.met, again.met)
    assert first.values.shape == (3, 4, 18) and torch.equal(first.masses, systems.masses)


def test_other_settings_or_systems_are_not_taken_from_the_cache(tmp_path):
    systems = some_systems(2)
    datasets.planet_series(systems, orbits=20, steps=4, cache=tmp_path)
    longer = datasets.planet_series(systems, orbits=40, steps=4, cache=tmp_path)
    others = datasets.planet_series(some_systems(2, seed=1), orbits=20, steps=4, cache=tmp_path)
    assert len(list(tmp_path.rglob("*.npz"))) == 3
    assert not torch.equal(longer.values, others.values)


def test_an_interrupted_run_keeps_what_was_finished(tmp_path, monkeypatch):
    systems, done = some_systems(120), []

    def tired(elements, **options):
        done.append(1)
        if len(done) == 61:
            raise KeyboardInterrupt
        return integrate(elements, **options)

    monkeypatch.setattr(module, "integrate", tired)
    with pytest.raises(KeyboardInterrupt):
        datasets.planet_series(systems, orbits=2, steps=1, cache=tmp_path, workers=1)
    assert len(list(tmp_path.rglob("*"))) == 2  # the folder and one whole chunk, and no temporary file
    done.clear()
    monkeypatch.setattr(module, "integrate", lambda e, **options: done.append(1) or integrate(e, **options))
    resumed = datasets.planet_series(systems, orbits=2, steps=1, cache=tmp_path)
    whole = datasets.planet_series(systems, orbits=2, steps=1, cache=tmp_path / "other", workers=2)
    assert len(done) == 70 + 120 and torch.equal(resumed.values, whole.values)


@pytest.mark.parametrize("workers", [1, 3])
def test_one_failure_stops_all_chunks_and_is_the_one_that_is_raised(workers, tmp_path, monkeypatch):
    systems, failed = some_systems(160), threading.Event()

    def broken(elements, **options):
        if np.array_equal(elements, module._checked(systems, 2, 1, None)[100]):  # the first of the third chunk of four
            failed.set()
            raise ArithmeticError("a planet was lost")
        if workers > 1:
            failed.wait(10)  # so that earlier chunks are still at work, and given up
        return integrate(elements, **options)

    monkeypatch.setattr(module, "integrate", broken)
    with pytest.raises(ArithmeticError, match="a planet was lost"):
        datasets.planet_series(systems, orbits=2, steps=1, cache=tmp_path, workers=workers)
    assert len(list(tmp_path.rglob("*.npz"))) == (2 if workers == 1 else 0)


def test_a_broken_file_is_integrated_again(tmp_path):
    systems = some_systems(2)
    first = datasets.planet_series(systems, orbits=20, steps=4, cache=tmp_path)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(datasets.planet_series(systems, orbits=20, steps=4, cache=tmp_path).values, first.values)


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUSIBLE_CACHE", str(tmp_path))
    datasets.planet_series(some_systems(1), orbits=2, steps=1)
    assert len(list((tmp_path / "planet-series").glob("*.npz"))) == 1
    monkeypatch.setenv("PLAUSIBLE_CACHE", "")
    assert cache_folder(None).parts[-2:] == (".cache", "plausible")


def test_without_rebound_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rebound", None)
    with pytest.raises(ImportError, match=r'pip install "plausible\[planets\]"'):
        datasets.planet_series(some_systems(1), orbits=2, steps=1, cache=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orbits": 0.0}, "orbits must be positive, got 0.0"),
        ({"steps": 0}, "steps must be a positive integer, got 0"),
        ({"workers": 0}, "workers must be a positive integer or None, got 0"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.planet_series(some_systems(1), cache=tmp_path, **options)


def test_systems_without_elements_are_refused(tmp_path):
    systems = replace(some_systems(1), elements=torch.empty(1, 3, 0))
    with pytest.raises(ValueError, match="must have elements"):
        datasets.planet_series(systems, cache=tmp_path)


def five() -> datasets.PlanetSystems:
    systems = datasets.own_planets([[1e-6, 2e-6, 3e-6, 4e-6, 5e-6]], [1.0, 1.5, 2.25, 3.6, 5.4])
    return replace(systems, log10_time=torch.tensor([6.0], dtype=torch.float64))


def test_trios_are_measured_by_their_own_innermost_planet():
    trios = datasets.adjacent_trios(five())
    assert len(trios) == 3 and trios.elements.shape == (3, 3, 7)
    assert trios.masses[1].tolist() == [2e-6, 3e-6, 4e-6] and (trios.elements[:, 0, 1] == 1).all()
    np.testing.assert_allclose(trios.period_ratios, [[1.5, 1.5], [1.5, 1.6], [1.6, 1.5]])
    np.testing.assert_allclose(trios.elements[2, 1, 1], 1.6 ** (2 / 3), rtol=1e-5)
    np.testing.assert_allclose(trios.log10_time, 6 - np.log10([1, 1.5, 2.25]))


def test_a_trio_among_planets_too_light_to_matter_moves_as_if_alone(tmp_path):
    heavy = dict(ELEMENTS)
    four = {name: [*values, values[-1]] for name, values in heavy.items()}
    four["masses"][3], four["periods"][3] = 1e-14, 9.0
    whole = datasets.planet_series(datasets.own_planets(**four), orbits=200, steps=3, cache=tmp_path)
    alone = datasets.planet_series(datasets.own_planets(**heavy), orbits=200, steps=3, cache=tmp_path)
    trios = datasets.trio_series(whole)
    assert trios.values.shape == (2, 3, 18) and trios.masses[1].tolist() == [2e-5, 1.5e-5, 1e-14]
    first = trios.values[0].reshape(3, 3, 6)[..., 1]
    torch.testing.assert_close(first, alone.values[0].reshape(3, 3, 6)[..., 1], rtol=0, atol=1e-6)
    assert (trios.values[:, 0].reshape(2, 3, 6)[:, 0, 0] == 1).all()


def test_own_planets_have_the_axes_that_keplers_third_law_gives():
    systems = datasets.own_planets([1e-5, 2e-5], [10.0, 80.0])
    np.testing.assert_allclose(systems.elements[0, :, 1], [1, 4 * ((1 + 2e-5) / (1 + 1e-5)) ** (1 / 3)])
    assert systems.log10_time.isnan().all() and systems.period_ratios.tolist() == [[8.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"periods": [1.0, 0.5, 2.0]}, "order of their periods"),
        ({"masses": [1e-5, -1e-5, 1e-5]}, "must be positive"),
        ({"eccentricities": [0.1, 1.0, 0.2]}, r"must lie in \[0, 1\)"),
        ({"true_anomalies": [0.1, math.nan, 0.2]}, "everything finite"),
    ],
)
def test_own_planets_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        datasets.own_planets(**{**ELEMENTS, **change})
