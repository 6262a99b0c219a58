"""Prior scales that are learnt: one for a layer, the network, each unit or each input (MacKay, 1992; Neal, 1996)."""

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plausible.core.errors import require_positive
from plausible.core.hyperpriors import HalfCauchy, Hyperprior
from plausible.core.priors.fan_in import FanIn
from plausible.core.priors.normal import Normal
from plausible.core.priors.prior import Prior
from plausible.core.priors.scale_mixture import ScaleMixture
from plausible.core.priors.scaled import Factor, Place, ScaledPrior
from plausible.core.unknowns import unknowns

PER = ("layer", "network", "unit", "input")


@dataclass(frozen=True)
class Hierarchical(ScaledPrior):
    """w = s · z with z from `family` and s, shared by several weights, from `hyperprior`.

    The unknown scales are called `prior.<layer>.scale`, a layer being a module with weights of its own; `constrain` gives
    the natural weights s · z. Methods that look for a highest point look for that of the natural weights' density, so
    `centred` does not change where they end.

    Args:
        family: Of z: Normal, Laplace, Cauchy or StudentT, or an instance such as StudentT(df=3.0) or fan_in(Normal()).
        hyperprior: One of `pl.hyperpriors`; a number is no unknown, and the prior is `family` with that scale.
        per: Who shares a scale: all weights of a "layer", its bias included, or of the "network" (`prior.scale`); or one
            scale per output "unit" or filter, its bias included; or one per "input" column (automatic relevance
            determination: what is no use gets a small scale), where biases, which have no inputs, have a scale of
            their own, `prior.<layer>.bias.scale`.
        centred: Keep w among the model's unknowns, instead of z. Samplers mix badly then; Kronecker-factored
            curvature, which is of natural weights, needs it.
    """

    family: Any = Normal
    hyperprior: Any = HalfCauchy()  # noqa: RUF009 - frozen
    per: str = "layer"
    centred: bool = False

    def __post_init__(self):
        if isinstance(self.hyperprior, numbers.Real) and not isinstance(self.hyperprior, bool):
            require_positive("hyperprior", self.hyperprior)
        elif not isinstance(self.hyperprior, Hyperprior):
            raise TypeError(
                f"hyperprior must be one of pl.hyperpriors, such as HalfCauchy(), or a positive number, got {self.hyperprior!r}"
            )
        if self.per not in PER:
            raise ValueError(f"per must be one of {', '.join(map(repr, PER))}, got {self.per!r}")
        standard = self.family() if isinstance(self.family, type) and issubclass(self.family, Prior) else self.family
        if not isinstance(standard, Prior):
            raise TypeError(f"family must be a prior such as pl.priors.Normal or StudentT(df=3.0), got {self.family!r}")
        if unknowns(standard):
            raise ValueError(
                f"family has an unknown scale of its own, {standard!r}; give it a number: the hierarchy's is the unknown one"
            )
        object.__setattr__(self, "_standard", standard)

    @property
    def standard(self) -> Prior:
        return self._standard  # type: ignore[attr-defined]

    def settled(self) -> Prior | None:
        return None if isinstance(self.hyperprior, Hyperprior) else widened(self.standard, float(self.hyperprior))

    def factors(self, weights: Mapping[str, Place]) -> dict[str, tuple[Factor, ...]]:
        taken: dict[str, Factor] = {}  # the factors that there are, by name
        return {name: (self._factor(name, place, taken),) for name, place in weights.items()}

    def _factor(self, name: str, place: Place, taken: dict[str, Factor]) -> Factor:
        axis = {"unit": place.unit_axis, "input": place.input_axis}.get(self.per)
        view = place.along(axis)
        shape = view if axis is not None else ()
        layer = name.rpartition(".")[0]
        full = "scale" if self.per == "network" else f"{layer}.scale" if layer else "scale"
        alone = self.per == "input" and axis is None
        # A module with weights of several widths, as attention has; and inputs of two weights, such as a recurrent layer's
        # inputs and states, are not the same even where they are equally many.
        if full in taken and (
            self.per == "input" or taken[full].size != Factor(full, self.hyperprior, shape, view).size
        ):
            alone = True
        full = f"{name}.scale" if alone else full
        first = taken.setdefault(full, Factor(full, self.hyperprior, shape, view))
        return dataclasses.replace(first, view=view)


def widened(prior: Prior, factor: float) -> Prior:
    """`prior` with its scale multiplied by a number."""
    if isinstance(prior, FanIn):
        return FanIn(widened(prior.prior, factor))
    if isinstance(prior, ScaleMixture):
        return dataclasses.replace(prior, scales=tuple(s * factor for s in prior.scales))
    if not hasattr(prior, "scale"):
        raise TypeError(f"{prior!r} has no scale to set; take Normal, Laplace, Cauchy or StudentT as family")
    return dataclasses.replace(prior, scale=prior.scale * factor)  # type: ignore[type-var]
