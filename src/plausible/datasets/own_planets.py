"""Planetary systems of a user's own, as the published sets have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from plausible.datasets.planet_systems import ELEMENTS, PlanetSystems


def own_planets(
    masses: Any,
    periods: Any,
    *,
    eccentricities: Any = 0.0,
    inclinations: Any = 0.0,
    longitudes_of_pericentre: Any = 0.0,
    longitudes_of_node: Any = 0.0,
    true_anomalies: Any = 0.0,
) -> PlanetSystems:
    """Systems whose outcome is not known; times are not numbers.

    Everything is (planets,) for one system or (N, planets) for many, and what is one number is that of every planet. Planets
    are in the order of their periods.

    Args:
        masses: in units of the star's; the Earth has 3.0e-6 of the Sun's.
        periods: in any unit.
        eccentricities: of the orbits.
        inclinations: in radians.
        longitudes_of_pericentre: in radians.
        longitudes_of_node: in radians.
        true_anomalies: in radians.
    """
    given = (
        masses, periods, eccentricities, inclinations, longitudes_of_pericentre, longitudes_of_node, true_anomalies
    )  # fmt: skip
    arrays = np.broadcast_arrays(*(np.atleast_2d(np.asarray(values, dtype=np.float64)) for values in given))
    elements = np.stack(arrays, axis=-1)  # in the order of ELEMENTS, but for the periods
    mass, period, eccentricity = elements[..., 0], elements[..., 1].copy(), elements[..., 2]
    if elements.ndim != 3 or elements.shape[1] < 2:
        raise ValueError(f"there must be two planets or more, got masses and periods of shape {elements.shape[:-1]}")
    if not (np.isfinite(elements).all() and (mass > 0).all() and (period > 0).all()):
        raise ValueError("masses and periods must be positive, and everything finite")
    if not ((eccentricity >= 0) & (eccentricity < 1)).all():
        raise ValueError(f"eccentricities must lie in [0, 1), got {eccentricity.min()} to {eccentricity.max()}")
    if not (period[:, 1:] > period[:, :-1]).all():
        raise ValueError("planets must be in the order of their periods, the innermost first")
    axis = (period / period[:, :1] * np.sqrt((1 + mass) / (1 + mass[:, :1]))) ** (2 / 3)
    elements[..., ELEMENTS.index("semimajor_axis")] = axis
    count, planets = mass.shape
    hill = ((mass[:, 1:] + mass[:, :-1]) / 3) ** (1 / 3) * (axis[:, 1:] + axis[:, :-1]) / 2
    return PlanetSystems(
        name="own planets",
        runs=tuple(str(row) for row in range(count)),
        masses=torch.from_numpy(mass.copy()),
        period_ratios=torch.from_numpy(period[:, 1:] / period[:, :-1]),
        separations=torch.from_numpy((axis[:, 1:] - axis[:, :-1]) / hill),
        elements=torch.from_numpy(elements),
        features=torch.empty(count, 0, dtype=torch.float64),
        feature_names=(),
        resonances=torch.empty(count, 0, dtype=torch.float64),
        log10_time=torch.full((count,), torch.nan, dtype=torch.float64),
        survived=torch.zeros(count, dtype=torch.bool),
        shadow_log10_time=torch.empty(0, dtype=torch.float64),
        shadow_survived=torch.empty(0, dtype=torch.bool),
        censored_at=float("inf"),
    )
