"""The horseshoe prior: most weights next to nothing, a few as large as they like (Carvalho, Polson & Scott, 2010)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from plausible.core.errors import require_positive
from plausible.core.hyperpriors import HalfCauchy
from plausible.core.priors.normal import Normal
from plausible.core.priors.prior import Prior
from plausible.core.priors.scaled import Factor, Place, ScaledPrior


@dataclass(frozen=True)
class Horseshoe(ScaledPrior):
    """wᵢ = τ λᵢ zᵢ with zᵢ ~ N(0, 1), λᵢ ~ half-Cauchy(1) and one τ ~ half-Cauchy(global_scale) for all weights it covers.

    The unknowns are `prior.scale` (τ), `prior.<weight>.local_scale` (λ, in the weight's shape) and, under the weight's
    own name, z.
    """

    centred: ClassVar[bool] = False  # type: ignore[misc]
    global_scale: float = 1.0

    def __post_init__(self):
        require_positive("global_scale", self.global_scale)

    @property
    def standard(self) -> Prior:
        return Normal(scale=1.0)

    def factors(self, weights: Mapping[str, Place]) -> dict[str, tuple[Factor, ...]]:
        return {
            name: (
                Factor("scale", HalfCauchy(self.global_scale), (), place.along(None)),
                Factor(f"{name}.local_scale", HalfCauchy(1.0), place.shape, place.shape),
            )
            for name, place in weights.items()
        }
