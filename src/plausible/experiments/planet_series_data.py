"""Which planetary systems the study of time series trains on and is judged by, and what they did in their first orbits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets import (
    PlanetSeries,
    PlanetSystems,
    adjacent_trios,
    five_planets,
    planet_series,
    split_planets,
    three_planets,
    trio_series,
)
from ..datasets.planet_series import trio_delays

SHORTEST = 4.0  # log10 of the orbits that are integrated: whatever ends sooner needs no prediction
LONGEST = 9.0  # log10 of the orbits that the published integrations last


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Three-planet systems that outlived the short integration, and its series."""

    systems: PlanetSystems
    series: PlanetSeries

    @property
    def targets(self) -> Tensor:
        """(N, 1), float32: log10 of the time, `LONGEST` where the system outlived the integration."""
        return self.systems.log10_time.clamp(max=LONGEST).float()[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class FivePart:
    """Systems of five planets and their adjacent trios, as they move among the other planets.

    Attributes:
        systems: censored at `LONGEST`.
        trios: three for each system.
        series: of the trios.
        met: (N,), orbits until two of the five planets met in the short integration, infinite where none did.
        delays: (N, 3), log10 of a trio's orbit in orbits of the innermost planet.
    """

    systems: PlanetSystems
    trios: PlanetSystems
    series: PlanetSeries
    met: Tensor
    delays: Tensor


def random_systems(root: Path | None, which: str, count: int) -> PlanetSystems:
    """Those of `random_part`, of whom it is not known yet what the short integration says."""
    systems = three_planets("random", root)
    systems = systems.take((systems.log10_time > SHORTEST).nonzero().flatten())
    rows = getattr(split_planets(systems, validation=0.05, test=0.1), which)
    return systems.take(rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))][:count])


def five_systems(root: Path | None, count: int) -> PlanetSystems:
    """Every so many-th system of five planets, so that all separations are there."""
    systems = five_planets(root).censored(LONGEST)
    return systems.take(torch.linspace(0, len(systems) - 1, count).round().long())


def random_part(root: Path | None, which: str, count: int, *, orbits: float = 1e4, steps: int = 100) -> Part:
    """The first systems of a part ("train", "validation" or "test") of the random set, in a shuffled order that never changes.

    Published times decide who takes part, and then the short integration once more: in a chaotic system it need not repeat
    the published one, and a series that ends early is no input.
    """
    systems = random_systems(root, which, count)
    series = planet_series(systems, orbits=orbits, steps=steps)
    alive = series.met.isinf().nonzero().flatten()
    return Part(systems=systems.take(alive), series=series.take(alive))


def five_part(root: Path | None, count: int, *, orbits: float = 1e4, steps: int = 100) -> FivePart:
    """The systems of `five_systems`, and what their trios did."""
    systems = five_systems(root, count)
    series = planet_series(systems, orbits=orbits, steps=steps)
    return FivePart(
        systems=systems,
        trios=adjacent_trios(systems),
        series=trio_series(series),
        met=series.met,
        delays=trio_delays(systems),
    )
