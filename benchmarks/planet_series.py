"""How much faster a prediction of planets' instability times is than integrating, and thirty networks at once than in turn.

    python benchmarks/planet_series.py --root DATA --out results/planets-gpu.json
    python benchmarks/planet_series.py --root DATA --posterior FILE      # one that the study has trained

An integration to 10⁹ orbits takes hours, so its time is extrapolated from the rate of the short one, taken in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from result_file import device_name, store
from timing import DEVICE, StepTimer, median_seconds, seconds

import plausible as pl
from plausible.datasets.planet_integration import integrate
from plausible.experiments.planet_network import INPUTS, SeriesNetwork, series_inputs
from plausible.experiments.planet_series import time_likelihood
from plausible.experiments.planet_series_data import random_systems

MODES, BATCH, STEPS, ORBITS, QUESTION = 30, 500, 100, 1e4, 1e9


def integration(systems: pl.datasets.PlanetSystems) -> dict:
    """Seconds of a system for the short integration, on one processor."""
    times = []
    for elements in systems.elements.numpy():
        start = time.perf_counter()
        track = integrate(elements, orbits=ORBITS, steps=STEPS)
        if track.met == float("inf"):
            times.append(time.perf_counter() - start)
    short = statistics.median(times)
    return {
        "systems": len(times),
        "orbits": ORBITS,
        "seconds": short,
        "orbits_per_second": ORBITS / short,
        "extrapolated_seconds_to_1e9_orbits": short * QUESTION / ORBITS,
    }


def prediction(posterior: pl.Posterior, series: pl.datasets.PlanetSeries, whole: float, short: float) -> dict:
    """Seconds of a system from its series to 240 draws of its time, many systems at once and one alone."""
    posterior = posterior.to(DEVICE)
    draws = 8 * len(posterior.components)

    def predicted(chosen: pl.datasets.PlanetSeries):
        return lambda: posterior.predict(series_inputs(chosen), num_samples=draws).mean

    many = median_seconds(predicted(series), 5, warm_up=2) / len(series)
    alone = median_seconds(predicted(series.take(torch.tensor([0]))), 9, warm_up=2)
    return {
        "modes": len(posterior.components),
        "draws": draws,
        "systems_at_once": len(series),
        "seconds_each_of_many": many,
        "seconds_alone": alone,
        "times_faster_than_1e9_orbits_each_of_many": whole / many,
        "times_faster_than_1e9_orbits_alone": whole / alone,
        "times_faster_with_short_integration_each_of_many": whole / (many + short),
        "times_faster_with_short_integration_alone": whole / (alone + short),
    }


def modes(x: torch.Tensor, y: torch.Tensor, steps: int) -> dict:
    """Milliseconds of a training step of thirty networks: at once, and thirty times that of one alone (extrapolated)."""

    def step(number: int, **options) -> float:
        timer = StepTimer(steps // 5, steps - 1)
        model = pl.BayesianModel(SeriesNetwork(), likelihood=time_likelihood(), prior=pl.priors.Normal(scale=1.0))
        pl.fit(
            model, (x, y), pl.MAP(), steps=steps, batch_size=BATCH, num_modes=number, init="reset", device=DEVICE,
            callbacks=[timer], progress=False, **options,
        )  # fmt: skip
        return timer.milliseconds

    together, alone = step(MODES), step(1)
    eager = plain_step(x.to(DEVICE), y.to(DEVICE), steps // 4)
    return {
        "batch_size": BATCH,
        "steps_timed": steps - steps // 5,
        "thirty_at_once_ms": together,
        "one_ms": alone,
        "one_plain_pytorch_ms": eager,
        "times_faster_than_thirty_fits_in_turn": MODES * alone / together,
        "times_faster_than_thirty_plain_loops_in_turn": MODES * eager / together,
    }


def plain_step(x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Milliseconds of the loop that one writes by hand: Adam on shuffled batches, eager."""
    network, likelihood = SeriesNetwork().to(DEVICE), time_likelihood()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step() -> None:
        chosen = torch.randint(0, len(x), (BATCH,), device=DEVICE)
        optimiser.zero_grad()
        (-likelihood.log_prob(network(x[chosen]), y[chosen]).mean()).backward()
        optimiser.step()

    for _ in range(10):
        step()
    return seconds(lambda: [step() for _ in range(steps)]) / steps * 1e3


def stand_in(train: pl.datasets.PlanetSeries) -> pl.Posterior:
    """Thirty modes of the right size, trained for a moment: they cost as much as good ones."""
    network = SeriesNetwork()
    x = series_inputs(train)
    network.standardise(x)
    model = pl.BayesianModel(network, likelihood=time_likelihood(), prior=pl.priors.Normal(scale=1.0))
    method = pl.MultiSWAG(modes=MODES, base=pl.SWAG(rank=4, base=pl.MAP()))
    y = torch.full((len(x), 1), 6.0)
    return pl.fit(model, (x, y), method, steps=80, batch_size=50, init="reset", progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--posterior", type=Path)
    parser.add_argument("--systems", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200 if DEVICE.type == "cuda" else 10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    systems = random_systems(options.root, "test", options.systems)
    found = {"integration": integration(systems.take(torch.arange(min(12, len(systems)))))}
    whole, short = found["integration"]["extrapolated_seconds_to_1e9_orbits"], found["integration"]["seconds"]
    series = pl.datasets.planet_series(systems)
    posterior = pl.load(options.posterior, SeriesNetwork()) if options.posterior else stand_in(series)
    found["prediction"] = prediction(posterior, series, whole, short)
    torch.manual_seed(0)
    count = 8000 if DEVICE.type == "cuda" else 1000
    found["training"] = modes(torch.randn(count, STEPS, INPUTS), 4 + 5 * torch.rand(count, 1), options.steps)
    found["device"] = device_name(platform.processor())
    found["torch"] = torch.__version__
    print(json.dumps(found, indent=1))
    store(found, options.out)


if __name__ == "__main__":
    main()
