"""Instability times of planetary systems (Tamayo et al., 2020; Obertas et al., 2017), as used by Cranmer et al. (2021)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plausible.datasets.locations import Published, Root
from plausible.datasets.npz import read_npz
from plausible.datasets.planet_systems import ELEMENTS, PlanetSystems
from plausible.datasets.planet_table import numbers, read_columns

PUBLISHED = Published(
    files="the tables of training_data and its simulations",
    source="https://github.com/dtamayo/spock and the Zenodo record that it names",
    place="planets",
)

END = 9.0  # log10 of the orbits after which an integration of three planets was stopped
SHORTEST_SURVIVAL = 0.999e9  # some were stopped this early; nothing that met lasted as long

_PAIR_FEATURES = ("EMfracstd", "EPstd", "AMDcrit", "AMDtriofrac", "EMcross", "MMRstrength", "j", "k")
FEATURES = (
    *(f"{name}near" for name in _PAIR_FEATURES),
    *(f"{name}far" for name in _PAIR_FEATURES),
    "MEGNO",
    "MEGNOstd",
    "stableinshortintegration",
)
"""The published summary features of the first 10⁴ orbits, of the nearer and the farther pair of neighbours: those that are
not empty."""

EMPTY_FEATURES = ("MMRstrengthfiltnear", "MMRstrengthfiltfar")
"""Published as well, but without a single value."""

RESONANCE_COLUMNS = ("pairindex", "j", "k", "Zstar", "libfac", "Zcom")
"""What a resonant system was drawn by: the pair (0 inner, 1 outer, 2 first and third planet), its resonance j : j - k, and
three amplitudes."""

_ELEMENT_COLUMNS = ("m", "a", "e", "inc", "pomega", "Omega", "f")  # in the order of ELEMENTS


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Which tables a set of three planets has."""

    outcomes: str
    has_features: bool = False
    has_spacings: bool = False
    has_elements: bool = False
    has_resonances: bool = False


_LAYOUTS = {
    "random": _Layout(outcomes="outcomes.csv.gz", has_spacings=True, has_elements=True),
    "resonant": _Layout(outcomes="outcomes.csv.gz", has_spacings=True, has_features=True, has_resonances=True),
    "KOI-1576": _Layout(outcomes="labels.csv.gz", has_features=True),
    "Kepler-431": _Layout(outcomes="labels.csv.gz"),
}


def three_planets(name: str = "resonant", root: Root = None) -> PlanetSystems:
    """A set of three-planet systems, integrated for 10⁹ orbits, from `root/planets/three_planet_NAME`.

    - `"random"`: 25,000 systems with their initial conditions (recomputed from the published recipe) and no features;
    - `"resonant"`: 9,999 systems in or near a mean-motion resonance, with features and no initial conditions. Some features
      are not numbers, above all where the features' own integration met early (`stableinshortintegration` is 0);
    - `"KOI-1576"` and `"Kepler-431"`: 1,500 configurations each of two real systems; features for the first only, whose
      period ratios follow from them.

    Two of the published features are empty everywhere and left out (`planets.EMPTY_FEATURES`); a feature that is empty in
    one set only is kept there, so that all sets have the same columns.

    Args:
        name: which set.
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
    """
    if name not in _LAYOUTS:
        raise ValueError(f"name must be one of {', '.join(_LAYOUTS)}, got {name!r}")
    layout = _LAYOUTS[name]
    folder = PUBLISHED.folder(root) / f"three_planet_{name}"
    outcomes_path = folder / layout.outcomes
    outcomes = _columns(outcomes_path)
    runs = _runs(outcomes, outcomes_path)
    times = numbers(outcomes, ("instability_time", "shadow_instability_time"), outcomes_path)
    log10_time, survived = _censored(times[:, 0])
    shadow_log10_time, shadow_survived = _censored(times[:, 1])

    features = _features(folder / "features.csv.gz", len(runs)) if layout.has_features else torch.empty(len(runs), 0)
    if layout.has_spacings:
        ratios = numbers(outcomes, ("Pratio21", "Pratio32"), outcomes_path)
        separations = numbers(outcomes, ("beta12", "beta23"), outcomes_path)
    else:
        ratios = _ratios_from_crossings(features) if name == "KOI-1576" else np.empty((len(runs), 0))
        separations = np.empty((len(runs), 0))
    if layout.has_elements:
        elements = _elements(folder / "initial_conditions.npz", len(runs))
        masses = elements[:, :, ELEMENTS.index("mass")]
    else:
        elements = np.empty((len(runs), 3, 0))
        masses = _joined(folder / "massratios.csv.gz", runs, ("m1", "m2", "m3"))
    resonances = (
        _joined(folder / "resonant_params.csv.gz", runs, RESONANCE_COLUMNS)
        if layout.has_resonances
        else np.empty((len(runs), 0))
    )
    return PlanetSystems(
        name=name,
        runs=runs,
        masses=_tensor(masses),
        period_ratios=_tensor(ratios),
        separations=_tensor(separations),
        elements=_tensor(elements),
        features=features.double(),
        feature_names=FEATURES if layout.has_features else (),
        resonances=_tensor(resonances),
        log10_time=log10_time,
        survived=survived,
        shadow_log10_time=shadow_log10_time,
        shadow_survived=shadow_survived,
        censored_at=END,
    )


def five_planets(root: Root = None) -> PlanetSystems:
    """17,500 systems of five equal planets, evenly spaced, at first circular and coplanar, from `root/planets/five_planet`.

    They were integrated ten times longer than those of three planets: `five_planets().censored(9)` has the same end. Rows are
    in the order of their separation. Published lengths are in au and times in years; here they are in units of the innermost
    planet's semimajor axis and period.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
    """
    path = PUBLISHED.folder(root) / "five_planet" / "five_planet.npz"
    if not path.is_file():
        raise PUBLISHED.missing(path)
    delta, axes, anomalies, years, met, planet, star = read_npz(
        path, "delta", "a", "f", "t_exit", "stop", "m_planet", "m_star"
    )
    shape = axes.shape
    if len(shape) != 2 or anomalies.shape != shape or not delta.shape == years.shape == met.shape == shape[:1]:
        raise ValueError(f"{path}: axes {shape} and separations {delta.shape} do not go together; fetch it again")
    elements = np.zeros((*shape, len(ELEMENTS)))
    elements[:, :, ELEMENTS.index("mass")] = planet / star
    elements[:, :, ELEMENTS.index("semimajor_axis")] = axes / axes[:, :1]
    elements[:, :, ELEMENTS.index("true_anomaly")] = anomalies
    log10_time = np.log10(years / (axes[:, 0] ** 1.5 / star**0.5))
    survived = met == 0
    # All innermost planets have one period, so all integrations one end.
    end = float(log10_time[survived].min()) if survived.any() else float(log10_time.max())
    return PlanetSystems(
        name="five planets",
        runs=tuple(str(row) for row in range(len(axes))),
        masses=_tensor(elements[:, :, ELEMENTS.index("mass")]),
        period_ratios=_tensor((axes[:, 1:] / axes[:, :-1]) ** 1.5),
        separations=_tensor(np.repeat(delta[:, None], shape[1] - 1, axis=1)),
        elements=_tensor(elements),
        features=_tensor(np.empty((len(axes), 0))),
        feature_names=(),
        resonances=_tensor(np.empty((len(axes), 0))),
        log10_time=_tensor(np.minimum(log10_time, end)),
        survived=torch.from_numpy(survived),
        shadow_log10_time=_tensor(np.empty(0)),
        shadow_survived=torch.empty(0, dtype=torch.bool),
        censored_at=end,
    )


def _tensor(array: np.ndarray) -> Tensor:
    return torch.tensor(array, dtype=torch.float64)


def _columns(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        raise PUBLISHED.missing(path)
    return read_columns(path)


def _runs(columns: dict[str, list[str]], path: Path) -> tuple[str, ...]:
    if "runstring" not in columns:
        raise ValueError(f"{path} has no column 'runstring'; fetch it again")
    return tuple(columns["runstring"])


def _censored(orbits: np.ndarray) -> tuple[Tensor, Tensor]:
    survived = orbits >= SHORTEST_SURVIVAL
    return _tensor(np.where(survived, END, np.log10(orbits))), torch.from_numpy(survived)


def _features(path: Path, rows: int) -> Tensor:
    features = numbers(_columns(path), FEATURES, path)
    if len(features) != rows:
        raise ValueError(f"{path} has {len(features)} rows, but there are {rows} outcomes; fetch it again")
    return _tensor(features)


def _joined(path: Path, runs: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """The rows of a table that belong to these runs: one table has a run more than the others."""
    columns = _columns(path)
    table = numbers(columns, names, path)
    row_of = {run: row for row, run in enumerate(_runs(columns, path))}
    missing = [run for run in runs if run not in row_of]
    if missing:
        raise ValueError(f"{path} has no row for run {missing[0]!r}; fetch it again")
    return table[[row_of[run] for run in runs]]


def _elements(path: Path, rows: int) -> np.ndarray:
    if not path.is_file():
        raise PUBLISHED.missing(path)
    columns, values = read_npz(path, "columns", "values")
    place = {str(column): i for i, column in enumerate(columns)}
    wanted = [[f"{element}{planet}" for element in _ELEMENT_COLUMNS] for planet in (1, 2, 3)]
    if values.shape != (rows, len(place)) or any(column not in place for planet in wanted for column in planet):
        raise ValueError(
            f"{path}: values {values.shape} of {', '.join(place)} are not those of {rows} systems; fetch it again"
        )
    return np.stack([values[:, [place[column] for column in planet]] for planet in wanted], axis=1)


def _ratios_from_crossings(features: Tensor) -> np.ndarray:
    """Period ratios from the crossing eccentricities of both pairs, which are a₂/a₁ - 1; KOI-1576's nearer pair is its inner."""
    crossings = features[:, [FEATURES.index("EMcrossnear"), FEATURES.index("EMcrossfar")]]
    return ((1 + crossings) ** 1.5).numpy()
