"""Priors over network weights."""

from plausible.core.priors.cauchy import Cauchy
from plausible.core.priors.correlated import Correlated
from plausible.core.priors.fan_in import FanIn, fan_in
from plausible.core.priors.flat import Flat
from plausible.core.priors.hierarchical import Hierarchical
from plausible.core.priors.horseshoe import Horseshoe
from plausible.core.priors.laplace import Laplace
from plausible.core.priors.normal import Normal
from plausible.core.priors.prior import Prior
from plausible.core.priors.reading import from_string
from plausible.core.priors.scale_mixture import ScaleMixture
from plausible.core.priors.student_t import StudentT

# The classes a saved file may name.
registry: dict[str, type] = {
    "Normal": Normal,
    "Laplace": Laplace,
    "Cauchy": Cauchy,
    "StudentT": StudentT,
    "ScaleMixture": ScaleMixture,
    "Flat": Flat,
    "FanIn": FanIn,
    "Hierarchical": Hierarchical,
    "Horseshoe": Horseshoe,
    "Correlated": Correlated,
}

__all__ = [
    "Cauchy",
    "Correlated",
    "FanIn",
    "Flat",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "fan_in",
    "from_string",
    "registry",
]
