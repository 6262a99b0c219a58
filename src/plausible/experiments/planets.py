"""Instability times of planetary systems from summaries of their first orbits (Cranmer et al., 2021).

Chosen on training and validation parts alone (the validation part of seed 0, eight modes or fewer): masses and period ratios
beside the published features (a tree's error falls from 0.915 to 0.900 dex over three seeds), MEGNO as a distance from 2, SiLU
in place of ReLU or tanh, the prior's scale among 1, 2, 3 and 6, batches of 512, SWAG's rate among 0.002, 0.005 and 0.01, its
scale among 0, ½, 1, 2 and 4, and the trees among five settings. With a wider prior, or smaller batches at this rate, networks
fit the training part more closely and the validation part worse. A single number for a time is its expected recorded value, as
trees estimate it. Validation systems of seed 0 may be in the test part of another seed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..core.method import Method
from ..datasets import PlanetSystems
from .planet_baselines import petit_baseline, shadow_baseline, trees_baseline
from .planet_features import FeatureScale, planet_columns
from .planet_pictures import PICTURES
from .planet_recorded_time import Forecast, forecast_scores, observed_coverage, spread_by_time, time_likelihood
from .study import Column, Outcome, Published, Row, Study

LEVELS = [0.05 * i for i in range(1, 20)]  # of the intervals whose coverage is drawn
SHIFTS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0]  # in standard deviations of the training part
NETWORKS = ("multiswag", "map", "deep-ensemble")
SEVERAL = ("multiswag", "deep-ensemble")  # of these, different weights can disagree
BASELINES = ("gradient-boosted-trees", "petit", "shadow")


@dataclass(frozen=True, kw_only=True)
class PlanetRow(Row):
    """A method, and the systems that it is judged by; all learn from resonant systems.

    Attributes:
        method: One of `NETWORKS` and `BASELINES`.
        systems: "resonant", its test part, or "KOI-1576", all of it.
        seeds: Splits, and trainings.
        limit: Systems of each set, None for all.
        modes: Of MultiSWAG, and members of the ensemble.
        draws: Weights drawn from each mode.
        hidden: Widths of the network's hidden layers.
        batch_size: Systems a step.
        learning_rate: Of Adam at its highest.
        prior_scale: Prior deviation of weights times the root of their number of inputs, and of biases.
        swag_rate: The rate while snapshots are taken.
        start: Share of the run before SWAG's first snapshot.
        snapshots: How many it takes.
        rank: Columns of its low-rank part.
        scale: Multiplies its covariance.
    """

    method: str
    systems: str = "resonant"
    seeds: int = 3
    limit: int | None = None
    modes: int = 30
    draws: int = 10
    hidden: tuple[int, ...] = (68, 68)
    batch_size: int = 512
    learning_rate: float = 0.01
    prior_scale: float = 3.0
    swag_rate: float = 0.01
    start: float = 0.6
    snapshots: int = 40
    rank: int = 20
    scale: float = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanetParts:
    """The parts of one seed."""

    train: PlanetSystems
    validation: PlanetSystems
    test: PlanetSystems
    scale: FeatureScale


def run(row: PlanetRow, root: Path | None) -> Outcome:
    """Train on the resonant systems of every seed's training part, and judge."""
    scores: list[dict[str, float]] = []
    coverages: list[list[float]] = []
    details: dict[str, Any] = {}
    for seed in range(row.seeds):
        parts = load_parts(root, row.limit, seed)
        judged = parts.test if row.systems == "resonant" else load_systems(row.systems, root, row.limit)
        trained = replace(row, name="", systems="resonant")  # what is trained does not depend on what is judged
        forecaster: Callable[[PlanetSystems], Forecast]
        if row.method in NETWORKS:
            posterior = fit_network(trained, root, seed)
            forecaster = functools.partial(network_forecast, row, posterior, parts.scale)
        else:
            forecaster = fit_baseline(trained, root, seed)
        forecast, seconds = _timed(forecaster, judged)
        scores.append({**_of_this_method(row, forecast, judged), **_rate(row, len(judged), seconds)})
        coverages.append([round(c, 4) for c in observed_coverage(forecast, judged.log10_time, LEVELS)])
        if seed == 0 and row.method in SEVERAL:
            details = _drawn(row, posterior, parts, forecast, judged)
    details["coverage"] = {"level": [round(level, 2) for level in LEVELS], "observed": coverages}
    return Outcome(
        scores={name: [s[name] for s in scores] for name in scores[0]},
        seeds=list(range(row.seeds)),
        details=details,
    )


@functools.lru_cache(maxsize=4)
def load_systems(name: str, root: Path | None, limit: int | None) -> PlanetSystems:
    """A published set, or its first systems."""
    systems = pl.datasets.three_planets(name, root)
    return systems if limit is None else systems.take(torch.arange(min(limit, len(systems))))


@functools.lru_cache(maxsize=8)
def load_parts(root: Path | None, limit: int | None, seed: int) -> PlanetParts:
    """The split of a seed; copies of a system, if there were any, would be on one side."""
    systems = load_systems("resonant", root, limit)
    split = pl.datasets.split_planets(systems, seed=seed)
    train = systems.take(split.train)
    return PlanetParts(
        train=train,
        validation=systems.take(split.validation),
        test=systems.take(split.test),
        scale=FeatureScale.of(planet_columns(train)),
    )


def planet_model(row: PlanetRow, inputs: int) -> pl.BayesianModel:
    """Some 7,000 weights that give the centre and the width of a system's time."""
    normal = pl.priors.Normal(scale=row.prior_scale)
    return pl.BayesianModel(
        pl.networks.MLP(inputs, row.hidden, 2, activation="silu"),
        likelihood=time_likelihood(),
        prior={"*.bias": normal, "*.weight": pl.priors.fan_in(normal)},
    )


def planet_method(row: PlanetRow) -> Method:
    """What trains a row's networks."""
    base = pl.MAP(learning_rate=row.learning_rate)
    if row.method == "map":
        return base
    if row.method == "deep-ensemble":
        return pl.DeepEnsemble(members=row.modes, base=base)
    swag = pl.SWAG(
        rank=row.rank, start=row.start, snapshots=row.snapshots, swag_learning_rate=row.swag_rate, scale=row.scale,
        base=base,
    )  # fmt: skip
    return pl.MultiSWAG(modes=row.modes, base=swag)


@functools.lru_cache(maxsize=24)  # the rows of two sets share what was trained
def fit_network(row: PlanetRow, root: Path | None, seed: int) -> pl.Posterior:
    """All modes at once."""
    parts = load_parts(root, row.limit, seed)
    x = parts.scale.inputs(planet_columns(parts.train))
    y = parts.train.log10_time[:, None].float()
    return pl.fit(
        planet_model(row, x.shape[1]), (x, y), planet_method(row), epochs=row.epochs, batch_size=row.batch_size,
        init="reset", seed=seed,
    )  # fmt: skip


@functools.lru_cache(maxsize=24)
def fit_baseline(row: PlanetRow, root: Path | None, seed: int) -> Callable[[PlanetSystems], Forecast]:
    """Everything that is no network."""
    parts = load_parts(root, row.limit, seed)
    if row.method == "petit":
        return petit_baseline(parts.validation)
    if row.method == "shadow":
        return shadow_baseline(parts.validation)
    return trees_baseline(parts.train, parts.validation, seed)


def network_forecast(
    row: PlanetRow, posterior: pl.Posterior, scale: FeatureScale, systems: PlanetSystems, shift: Tensor | None = None
) -> Forecast:
    """The average over draws from every mode."""
    x = scale.inputs(planet_columns(systems), shift)
    return Forecast(predictive=posterior.predict(x, num_samples=row.draws * row.modes))


def _timed(forecaster: Callable[[PlanetSystems], Forecast], systems: PlanetSystems) -> tuple[Forecast, float]:
    """A forecast with everything that a user would ask of it, and how long that takes once all is loaded."""
    forecaster(systems)
    began = time.perf_counter()
    forecast = forecaster(systems)
    _ = forecast.expected, forecast.survival
    return forecast, time.perf_counter() - began


def _of_this_method(row: PlanetRow, forecast: Forecast, judged: PlanetSystems) -> dict[str, float]:
    """The scores that this method can have: a single set of weights has no disagreement to show."""
    scores = forecast_scores(forecast, judged.log10_time)
    if row.method not in SEVERAL:
        del scores["epistemic"]
    return scores


def _rate(row: PlanetRow, count: int, seconds: float) -> dict[str, float]:
    """Systems a second; a shadow has to be integrated, which is not done here."""
    return {} if row.method == "shadow" else {"rate": count / seconds}


def _drawn(
    row: PlanetRow, posterior: pl.Posterior, parts: PlanetParts, forecast: Forecast, judged: PlanetSystems
) -> dict[str, Any]:
    """What the pictures show of the first seed."""
    levels = {"low": 0.16, "median": 0.5, "high": 0.84}
    details: dict[str, Any] = {}
    if row.method == "multiswag":
        details["predictions"] = {
            "time": _rounded(judged.log10_time),
            **{name: _rounded(forecast.quantile(q)) for name, q in levels.items()},
            "disagreement": _rounded(forecast.disagreement),
        }
        details["spread"] = spread_by_time(forecast, judged.log10_time, judged.shadow_log10_time)
    if row.systems == "resonant":
        signs = (
            torch.randint(2, (len(judged), len(parts.scale.mean)), generator=torch.Generator().manual_seed(0)) * 2 - 1
        )
        quantiles = torch.tensor([0.16, 0.5, 0.84], dtype=torch.float64)
        moved = [network_forecast(row, posterior, parts.scale, judged, shift * signs.double()) for shift in SHIFTS]
        details["shift"] = {
            "shift": SHIFTS, "disagreement": [_rounded(f.disagreement.quantile(quantiles)) for f in moved]
        }  # fmt: skip
    return details


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def toy(row: PlanetRow) -> PlanetRow:
    """A few hundred systems, three small modes and a few passes."""
    return replace(
        row, full=False, epochs=4 if row.epochs else 0, seeds=1, limit=400, modes=3, draws=2, hidden=(16,), batch_size=64,
        snapshots=4, rank=3,
    )  # fmt: skip


FIRST = PlanetRow(name="multiswag", method="multiswag", epochs=60)
RESONANT = tuple(
    replace(FIRST, name=method, method=method, epochs=60 if method in NETWORKS else 0)
    for method in NETWORKS + BASELINES
)
STUDY = Study(
    name="planets",
    title="Instability of planetary systems, from summary features",
    paper=(
        "Cranmer, Tamayo, Rein, Battaglia, Hadden, Armitage, Ho & Spergel (2021), A Bayesian neural network predicts the "
        "dissolution of compact planetary systems"
    ),
    about=(
        "How long does a system of three planets last before two of them meet? Networks of some 7,000 weights read 19 published "
        "summaries of the first 10⁴ orbits, the masses and the period ratios of 9,999 systems near a resonance, and say log10 "
        "of the time in orbits: a normal law, nothing below 4, censored at 9, where the integrations end. Eight tenths of the "
        "systems are trained on, a tenth is for tuning and a tenth is the test; every seed has a split of its own. Rows named "
        "after KOI-1576 are judged by 1,500 configurations of that real system, which no training has seen. `petit` is an "
        "analytic estimate; 92 % of its times are infinite and count as 9. `shadow` is the integrator itself, run again on the "
        "same system nudged by 10⁻¹¹: its RMSE over √2 is the chaotic spread, below which no forecast can come. Trees, "
        "`petit` and `shadow` get their normal law around a line through their estimates, fitted to the tuning part. The paper's "
        "own networks read time series in place of summaries, and have an RMSE of 0.96 to 1.12 on their systems."
    ),
    columns={
        "rmse": Column(
            heading="RMSE", form=".3f", better="low",
            meaning="root mean squared error in dex of the expected recorded time, where systems met within 10⁹ orbits",
        ),
        "bias": Column(
            heading="bias", form=".3f", better="near", aim=0.0,
            meaning="mean error in dex there; above 0 since the systems that outlived the record are left out",
        ),
        "auc": Column(
            heading="AUC", form=".4f", better="high", meaning="of telling who outlives 10⁹ orbits by its probability"
        ),
        "nll": Column(
            heading="NLL", form=".4f", better="low", meaning="negative log likelihood of the true mixture, censored"
        ),
        "cover68": Column(
            heading="in 68 %", form=".3f", better="near", aim=0.68,
            meaning=(
                "share of times inside the central 68 % interval; of a censored time, the share of the forecast beyond 9 that "
                "lies inside the interval counts, so that a calibrated forecast has 0.68 however many are censored"
            ),
        ),
        "cover95": Column(heading="in 95 %", form=".3f", better="near", aim=0.95, meaning="the same of the 95 % interval"),
        "aleatoric": Column(
            heading="aleatoric", form=".3f", better="neither",
            meaning="spread in dex that a forecast expects of recorded times for known weights, root mean square over systems",
        ),
        "epistemic": Column(
            heading="epistemic", form=".3f", better="neither", everywhere=False,
            meaning="spread in dex of what different weights expect, root mean square over systems",
        ),
        "rate": Column(
            heading="systems/s", form=",.0f", better="high", everywhere=False,
            meaning="forecasts a second from features in memory; the short integration that makes features is not counted",
        ),
    },
    rows=(*RESONANT, *(replace(row, name=f"{row.name}-KOI-1576", systems="KOI-1576") for row in RESONANT)),
    published={"petit": Published(values={"rmse": 3.15}, epochs=0)},
    differences=(
        "networks read summaries of the first 10⁴ orbits; the authors' read time series, which are not among these data",
        "trained on resonant systems alone, eight tenths of 9,999",
        "the features' own integration met within 10⁴ orbits in 645 systems; what is missing of them is flagged, not left out",
        "one time of each system; the authors count a system and its shadow as two",
        "no copies of a system were found in this set: masses are no closer to each other than in shuffled columns, no two "
        "systems have the same features, and no two draws share a recorded seed, so a split by system is a split by group",
        "rows of KOI-1576 are of the networks and trees that the rows above them trained",
    ),
    repetition="seed",
    run=run,
    toy=toy,
    pictures=PICTURES,
)  # fmt: skip
