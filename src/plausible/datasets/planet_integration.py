"""The first orbits of a planetary system, integrated with REBOUND (Rein & Liu, 2012), an optional dependency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np

STEP = 2 * math.sqrt(3) / 100
"""The integrator's step in periods of the innermost planet. With it WHFast repeats most of the published times of short-lived
random systems; with 0.05, which is said elsewhere, about half as many."""

CHANNELS = (
    "semimajor_axis",
    "eccentricity",
    "inclination",
    "longitude_of_pericentre",
    "longitude_of_node",
    "mean_longitude",
)
"""What is recorded of each planet: osculating Jacobi elements, angles in radians."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Track:
    """What became of one system.

    Attributes:
        values: (steps, planets * channels), the channels of the innermost planet first.
        met: orbits of the innermost planet until two planets met; infinite where none did.
    """

    values: np.ndarray
    met: float


def integrate(elements: np.ndarray, *, orbits: float, steps: int) -> Track:
    """Follow one system for a number of orbits of its innermost planet, or until two planets meet.

    Planets meet where their Hill spheres touch, as in the published sets. What follows a meeting is filled with the elements
    seen last, those of the start if there were none.

    Args:
        elements: (planets, 7), the columns of `planet_systems.ELEMENTS`; semimajor axes in any unit.
        orbits: how long.
        steps: at how many times, evenly spread and the end among them, elements are recorded.
    """
    rebound = _rebound()
    simulation = rebound.Simulation()  # its G is 1, so times have the units that semimajor axes give them
    simulation.add(m=1.0)
    for mass, axis, eccentricity, inclination, pericentre, node, anomaly in elements.tolist():
        simulation.add(
            m=mass, a=axis, e=eccentricity, inc=inclination, pomega=pericentre, Omega=node, f=anomaly,
            r=axis * (mass / 3) ** (1 / 3),
        )  # fmt: skip
    simulation.move_to_com()
    period = simulation.particles[1].P
    simulation.integrator = "whfast"
    simulation.integrator.safe_mode = 0  # kicks and drifts of neighbouring steps are merged until somebody looks
    simulation.dt = STEP * period
    simulation.collision = "line"
    values = np.repeat(_seen(simulation)[None], steps, axis=0)
    for step in range(steps):
        try:
            # Not exactly to the time: a step of another length would spoil a symplectic integrator.
            simulation.integrate((step + 1) / steps * orbits * period, exact_finish_time=0)
        except rebound.Collision:
            return Track(values=values, met=max(simulation.t, simulation.dt) / period)
        seen = _seen(simulation)
        if not np.isfinite(seen).all() or (seen[:: len(CHANNELS)] <= 0).any():  # thrown out without a meeting
            return Track(values=values, met=simulation.t / period)
        values[step:] = seen
    return Track(values=values, met=math.inf)


def _seen(simulation) -> np.ndarray:
    return np.array([(o.a, o.e, o.inc, o.pomega, o.Omega, o.l) for o in simulation.orbits()]).reshape(-1)


def _rebound() -> ModuleType:
    try:
        import rebound
    except ImportError:
        raise ImportError(
            'rebound integrates planetary systems and is not installed; pip install "plausible[planets]"'
        ) from None
    return rebound
