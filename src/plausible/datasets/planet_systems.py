"""Planetary systems and how long they last before two planets meet."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

# What `elements` holds of each planet: mass in stars, semimajor axis in units of the innermost planet's, angles in radians.
ELEMENTS = (
    "mass",
    "semimajor_axis",
    "eccentricity",
    "inclination",
    "longitude_of_pericentre",
    "longitude_of_node",
    "true_anomaly",
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanetSystems:
    """N systems of P planets, row by row, with the outcome of integrating each.

    Numbers are float64: what two rounding errors do to a chaotic system is part of the question. Times are log10 of the
    number of orbits of the innermost planet until the first close encounter. What a set does not have is empty: a width
    of 0, or a length of 0 for the shadows.

    Attributes:
        name: the set's name.
        runs: the name of each integration.
        masses: (N, P), in units of the star's mass.
        period_ratios: (N, P - 1), outer over inner period of neighbours, above 1.
        separations: (N, P - 1), of neighbours in Hill radii; of three planets a₁((m₁ + m₂)/3)^⅓ with the inner axis, of five
            with the mean of both axes, as published.
        elements: (N, P, 7), the columns of `ELEMENTS`.
        features: (N, F), summaries of the first 10⁴ orbits; not a number where one could not be computed.
        feature_names: the name of each feature.
        resonances: (N, 6), the mean-motion resonance that the system was drawn in, the columns of
            `planets.RESONANCE_COLUMNS`; j = k = 0 where that is not recorded.
        log10_time: (N,), `censored_at` where the system outlived the integration.
        survived: (N,), whether it did.
        shadow_log10_time: (N,), the same system nudged by 10⁻¹¹: the difference is chaos, which no model can predict.
        shadow_survived: (N,), whether that one outlived the integration.
        censored_at: log10 of the length of the integrations.
    """

    name: str
    runs: tuple[str, ...]
    masses: Tensor
    period_ratios: Tensor
    separations: Tensor
    elements: Tensor
    features: Tensor
    feature_names: tuple[str, ...]
    resonances: Tensor
    log10_time: Tensor
    survived: Tensor
    shadow_log10_time: Tensor
    shadow_survived: Tensor
    censored_at: float

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        return (
            f"PlanetSystems({self.name!r}, {len(self)} systems of {self.masses.shape[1]} planets, "
            f"{self.features.shape[1]} features, {int(self.survived.sum())} censored at {self.censored_at:g})"
        )

    def take(self, rows: Tensor) -> PlanetSystems:
        """The systems of these row numbers, in this order."""
        taken: dict[str, Any] = {"runs": tuple(self.runs[row] for row in rows.tolist())}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and len(value) == len(self):  # there may be no shadows
                taken[field.name] = value[rows]
        return replace(self, **taken)

    def censored(self, at: float) -> PlanetSystems:
        """As if the integrations had ended earlier, so that sets of different length can be compared."""
        if not at <= self.censored_at:
            raise ValueError(f"at must not lie beyond {self.censored_at:g}, where {self.name} ends, got {at}")
        return replace(
            self,
            log10_time=self.log10_time.clamp(max=at),
            survived=self.log10_time >= at,
            shadow_log10_time=self.shadow_log10_time.clamp(max=at),
            shadow_survived=self.shadow_log10_time >= at,
            censored_at=at,
        )
