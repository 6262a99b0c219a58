import gzip
import math

import numpy as np
import pytest
import torch

from plausible import datasets
from plausible.datasets import planets
from plausible.datasets.planet_systems import ELEMENTS

SETS = {
    "random": "outcomes.csv.gz",
    "resonant": "outcomes.csv.gz",
    "KOI-1576": "labels.csv.gz",
    "Kepler-431": "labels.csv.gz",
}
RUNS = ("0000000.bin", "0000001.bin", "0000003.bin")
TIMES = ((1000.0, 0.999e9 + 5), (1.00005e9, 2e8), (0.998e9, 1.0e9))
MASSES = np.array([[1e-5, 2e-5, 3e-5], [4e-6, 5e-6, 6e-6], [7e-7, 8e-7, 9e-7]])


def write(path, header, rows):
    """A table as it was published: numbered rows, the column of numbers without a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(["", *header])] + [",".join([str(i), *map(str, row)]) for i, row in enumerate(rows)]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def tiny(tmp_path):
    """Three systems of each kind, and five of five planets."""
    for name, outcomes in SETS.items():
        folder = tmp_path / "planets" / f"three_planet_{name}"
        spaced = outcomes.startswith("outcomes")
        header = ["runstring", "instability_time", "shadow_instability_time", "Stable"]
        rows = [[run, *times, times[0] >= 0.999e9] for run, times in zip(RUNS, TIMES, strict=True)]
        if spaced:
            header += ["Pratio21", "Pratio32", "beta12", "beta23"]
            rows = [[*row, 1.2 + i, 1.5 + i, 10 + i, 20 + i] for i, row in enumerate(rows)]
        write(folder / outcomes, header, rows)
        if name != "random":
            write(
                folder / "massratios.csv.gz",
                ["runstring", "m1", "m2", "m3"],
                [[run, *masses] for run, masses in zip(RUNS, MASSES, strict=True)],
            )
        if name in ("resonant", "KOI-1576"):
            names = [*planets.FEATURES[:5], "MMRstrengthfiltnear", *planets.FEATURES[5:], "MMRstrengthfiltfar"]
            cell = {name: 0.1 * (i + 1) for i, name in enumerate(planets.FEATURES)}
            write(folder / "features.csv.gz", names, [[cell.get(name, "") for name in names] for _ in RUNS])
        if name == "resonant":
            # One run more than the other tables, and in the middle.
            runs = (*RUNS[:2], "0000002.bin", RUNS[2])
            write(
                folder / "resonant_params.csv.gz",
                ["runstring", "seed", *planets.RESONANCE_COLUMNS],
                [[run, 7, i, 3, 1, 0.1, 0.2, 0.3] for i, run in enumerate(runs)],
            )
    columns = np.array(
        [f"{element}{planet}" for element in ("m", "a", "e", "inc", "pomega", "Omega", "f") for planet in "123"]
    )
    values = np.arange(3 * 21).reshape(3, 21) / 100
    np.savez(tmp_path / "planets/three_planet_random/initial_conditions.npz", columns=columns, values=values)
    (tmp_path / "planets/five_planet").mkdir()
    np.savez(
        tmp_path / "planets/five_planet/five_planet.npz",
        delta=np.array([2.0, 6.0, 12.0]),
        a=0.25 * 1.21 ** np.arange(5) * np.ones((3, 1)),
        f=np.arange(15.0).reshape(3, 5),
        t_exit=np.array([1.25, 1e8, 1e10]),
        stop=np.array([1, 1, 0], np.int8),
        m_planet=np.array(6e-6),
        m_star=np.array(2.0),
    )
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_times_are_log10_of_orbits_and_9_where_nothing_met(tiny, name):
    systems = datasets.three_planets(name, tiny)
    assert len(systems) == 3 and systems.runs == RUNS and systems.censored_at == 9
    np.testing.assert_allclose(systems.log10_time, [3, 9, math.log10(0.998e9)], rtol=1e-14)
    np.testing.assert_allclose(systems.shadow_log10_time, [9, math.log10(2e8), 9], rtol=1e-14)
    assert systems.survived.tolist() == [False, True, False]
    assert systems.shadow_survived.tolist() == [True, False, True]
    assert systems.log10_time.dtype == torch.float64


def test_what_a_set_does_not_have_is_empty(tiny):
    widths = {}
    for name in SETS:
        s = datasets.three_planets(name, tiny)
        widths[name] = (s.features.shape[1], s.period_ratios.shape[1], s.elements.shape[2], s.resonances.shape[1])
        assert len(s.feature_names) == s.features.shape[1]
    assert widths == {
        "random": (0, 2, 7, 0),
        "resonant": (19, 2, 0, 6),
        "KOI-1576": (19, 2, 0, 0),
        "Kepler-431": (0, 0, 0, 0),
    }


def test_features_are_found_by_name_and_the_empty_ones_are_left_out(tiny):
    systems = datasets.three_planets("resonant", tiny)
    assert not set(planets.EMPTY_FEATURES) & set(systems.feature_names)
    np.testing.assert_allclose(systems.features, 0.1 * np.arange(1, 20) * np.ones((3, 1)), rtol=1e-12)


def test_an_empty_cell_is_not_a_number(tiny):
    write(
        tiny / "planets/three_planet_KOI-1576/features.csv.gz",
        planets.FEATURES,
        [["" if name == "MEGNO" else 1 for name in planets.FEATURES]] * 3,
    )
    missing = datasets.three_planets("KOI-1576", tiny).features.isnan()
    assert missing.sum(0).nonzero().flatten().tolist() == [planets.FEATURES.index("MEGNO")]


def test_resonances_are_joined_by_the_name_of_the_run(tiny):
    systems = datasets.three_planets("resonant", tiny)
    assert systems.resonances[:, 0].tolist() == [0, 1, 3]
    np.testing.assert_array_equal(systems.masses, MASSES)


def test_elements_are_sorted_by_planet(tiny):
    systems = datasets.three_planets("random", tiny)
    # In the file, column 3 e + p is element e of planet p.
    expected = (21 * np.arange(3)[:, None, None] + np.arange(3)[:, None] + 3 * np.arange(7)) / 100
    np.testing.assert_allclose(systems.elements, expected, rtol=1e-14)
    np.testing.assert_array_equal(systems.masses, systems.elements[:, :, 0])


def test_five_planets_are_measured_by_the_innermost_orbit(tiny):
    systems = datasets.five_planets(tiny)
    # An axis of 1/4 au around two suns: a period of 1/8 / sqrt(2) years.
    np.testing.assert_allclose(10**systems.log10_time, 8 * 2**0.5 * np.array([1.25, 1e8, 1e10]), rtol=1e-10)
    assert systems.survived.tolist() == [False, False, True] and systems.log10_time[2] == systems.censored_at
    np.testing.assert_allclose(systems.period_ratios, 1.331, rtol=1e-12)
    np.testing.assert_allclose(systems.elements[0, :, ELEMENTS.index("semimajor_axis")], 1.21 ** np.arange(5))
    assert (systems.masses == 3e-6).all() and systems.separations.shape == (3, 4)
    assert systems.elements[1, 4, ELEMENTS.index("true_anomaly")] == 9
    assert not systems.elements[:, :, 2:6].any() and len(systems.shadow_log10_time) == 0


def test_censoring_earlier_shortens_times_and_never_lengthens_them(tiny):
    systems = datasets.five_planets(tiny).censored(9)
    assert systems.survived.tolist() == [False, True, True] and systems.log10_time[1:].tolist() == [9, 9]
    with pytest.raises(ValueError, match="at must not lie beyond 9, where five planets ends, got 10"):
        systems.censored(10)
    shadows = datasets.three_planets("resonant", tiny).censored(8)
    assert shadows.shadow_survived.tolist() == [True, True, True] and shadows.survived.tolist() == [False, True, True]


def test_taking_rows_takes_them_of_everything(tiny):
    rows = torch.tensor([2, 0])
    systems = datasets.three_planets("resonant", tiny)
    taken = systems.take(rows)
    assert taken.runs == (RUNS[2], RUNS[0]) and len(taken) == 2
    for name in ("masses", "period_ratios", "separations", "features", "resonances", "log10_time", "shadow_survived"):
        assert torch.equal(getattr(taken, name), getattr(systems, name)[rows]), name
    assert len(datasets.five_planets(tiny).take(rows).shadow_log10_time) == 0


def test_a_description_counts_systems_and_survivors(tiny):
    text = "PlanetSystems('resonant', 3 systems of 3 planets, 19 features, 1 censored at 9)"
    assert repr(datasets.three_planets("resonant", tiny)) == text


def test_an_unknown_name_lists_those_there_are(tiny):
    with pytest.raises(ValueError, match="name must be one of random, resonant, KOI-1576, Kepler-431, got '../uci'"):
        datasets.three_planets("../uci", tiny)


@pytest.mark.parametrize("file", ["outcomes.csv.gz", "features.csv.gz", "massratios.csv.gz", "resonant_params.csv.gz"])
def test_a_missing_table_says_what_to_download(tiny, file):
    (tiny / "planets/three_planet_resonant" / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"{file} is missing; download .* to planets/ in the folder that root="):
        datasets.three_planets("resonant", tiny)


def test_missing_arrays_say_what_to_download(tiny):
    (tiny / "planets/five_planet/five_planet.npz").unlink()
    with pytest.raises(FileNotFoundError, match="five_planet.npz is missing; download"):
        datasets.five_planets(tiny)
    (tiny / "planets/three_planet_random/initial_conditions.npz").unlink()
    with pytest.raises(FileNotFoundError, match="initial_conditions.npz is missing; download"):
        datasets.three_planets("random", tiny)


def test_a_table_with_too_few_rows_is_refused(tiny):
    write(tiny / "planets/three_planet_resonant/features.csv.gz", planets.FEATURES, [[1] * 19] * 2)
    with pytest.raises(ValueError, match="features.csv.gz has 2 rows, but there are 3 outcomes; fetch it again"):
        datasets.three_planets("resonant", tiny)
    write(
        tiny / "planets/three_planet_Kepler-431/massratios.csv.gz",
        ["runstring", "m1", "m2", "m3"],
        [[RUNS[0], 1, 1, 1]],
    )
    with pytest.raises(ValueError, match=f"no row for run '{RUNS[1]}'; fetch it again"):
        datasets.three_planets("Kepler-431", tiny)


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b",runstring\n0,a,b\n"), gzip.compress(b",runstring\n")],
    ids=["no gzip", "a row that is too long", "no row"],  # a compressed file has the time in it
)
def test_a_damaged_table_is_refused(tiny, content):
    (tiny / "planets/three_planet_Kepler-431/labels.csv.gz").write_bytes(content)
    with pytest.raises(ValueError, match="labels.csv.gz cannot be read: .*; fetch it again"):
        datasets.three_planets("Kepler-431", tiny)


def test_a_missing_column_is_named(tiny):
    write(tiny / "planets/three_planet_Kepler-431/labels.csv.gz", ["runstring", "Stable"], [["a", True]])
    with pytest.raises(ValueError, match="has no column 'instability_time', only runstring, Stable; fetch it again"):
        datasets.three_planets("Kepler-431", tiny)


# --- the real sets ---


@pytest.mark.parametrize(
    ("name", "rows", "survivors"),
    [("random", 25_000, 9909), ("resonant", 9999, 2599), ("KOI-1576", 1500, 967), ("Kepler-431", 1500, 1095)],
)
def test_the_real_sets_have_their_published_sizes_and_survivors(data_dir, name, rows, survivors):
    systems = datasets.three_planets(name, data_dir)
    assert len(systems) == rows and systems.survived.sum() == survivors
    # The table's own column of survivors is not read; it must say the same.
    with gzip.open(data_dir / f"planets/three_planet_{name}" / SETS[name], "rt") as file:
        header, *lines = file.read().splitlines()
    stable = header.split(",").index("Stable")
    assert [line.split(",")[stable] == "True" for line in lines] == systems.survived.tolist()
    assert systems.log10_time[~systems.survived].max() < 8.9998 and systems.masses.min() > 0


def test_real_initial_conditions_give_the_published_period_ratios(data_dir):
    systems = datasets.three_planets("random", data_dir)
    axes = systems.elements[:, :, ELEMENTS.index("semimajor_axis")]
    torch.testing.assert_close((axes[:, 1:] / axes[:, :-1]) ** 1.5, systems.period_ratios, rtol=1e-4, atol=0)
    hill = ((systems.masses[:, :-1] + systems.masses[:, 1:]) / 3) ** (1 / 3)
    torch.testing.assert_close((axes[:, 1:] / axes[:, :-1] - 1) / hill, systems.separations, rtol=1e-3, atol=0)


def test_real_features_belong_to_their_outcomes(data_dir):
    systems = datasets.three_planets("resonant", data_dir)
    near, far = (systems.features[:, planets.FEATURES.index(f"EMcross{pair}")] for pair in ("near", "far"))
    crossings = (systems.period_ratios ** (2 / 3) - 1).sort(1).values
    torch.testing.assert_close(torch.stack([near, far], 1), crossings, rtol=5e-4, atol=0)


def test_the_real_empty_features_are_empty_and_no_other_is(data_dir):
    systems = datasets.three_planets("resonant", data_dir)
    assert not systems.features.isnan().all(0).any()
    path = data_dir / "planets/three_planet_resonant/features.csv.gz"
    columns = planets.read_columns(path)
    assert set(columns) == {"", *planets.FEATURES, *planets.EMPTY_FEATURES}
    assert not any("".join(columns[name]) for name in planets.EMPTY_FEATURES)


def test_the_real_period_ratios_of_koi_1576_are_those_of_its_planets(data_dir):
    ratios = datasets.three_planets("KOI-1576", data_dir).period_ratios
    # Kepler-307 b and c, 10.4208 and 13.0729 days; the third planet 23.34 days.
    torch.testing.assert_close(
        ratios.mean(0), torch.tensor([13.0729 / 10.4208, 23.34 / 13.0729]).double(), rtol=1e-3, atol=0
    )


def test_the_real_five_planets_are_evenly_spaced_in_mutual_hill_radii(data_dir):
    systems = datasets.five_planets(data_dir)
    assert systems.elements.shape == (17_500, 5, 7) and systems.survived.sum() == 1313
    axes = systems.elements[:, :, ELEMENTS.index("semimajor_axis")]
    hill = (2 * systems.masses[:, 1:] / 3) ** (1 / 3) * (axes[:, 1:] + axes[:, :-1]) / 2
    torch.testing.assert_close((axes[:, 1:] - axes[:, :-1]) / hill, systems.separations, rtol=1e-10, atol=0)
    assert systems.censored_at == pytest.approx(10 - 1.5 * math.log10(0.99), abs=1e-9)


def test_the_real_resonant_systems_lie_near_the_resonance_they_were_drawn_in(data_dir):
    systems = datasets.three_planets("resonant", data_dir)
    pair, j, k = systems.resonances[systems.resonances[:, 1] > 0, :3].long().T
    assert len(pair) == len(systems) - 3 and pair.unique().tolist() == [0, 1, 2]
    ratios = systems.period_ratios[systems.resonances[:, 1] > 0]
    ratios = torch.cat([ratios, ratios.prod(1, keepdim=True)], 1)
    apart = (ratios * ((j - k) / j)[:, None] - 1).abs()
    for drawn in range(3):
        # Within a per cent for the pair that is named, and tens of per cent for the others.
        assert apart[pair == drawn].quantile(0.95, 0).argmin() == drawn
        assert apart[pair == drawn, drawn].quantile(0.95) < 0.01
