"""Likelihoods: what a network's outputs say about the targets."""

from plausible.core.likelihoods.bernoulli import Bernoulli
from plausible.core.likelihoods.categorical import Categorical
from plausible.core.likelihoods.censored_normal import CensoredNormal
from plausible.core.likelihoods.heteroscedastic_normal import HeteroscedasticNormal
from plausible.core.likelihoods.likelihood import Likelihood
from plausible.core.likelihoods.normal import Normal
from plausible.core.likelihoods.poisson import Poisson
from plausible.core.likelihoods.student_t import StudentT

# The classes a saved file may name.
registry: dict[str, type] = {
    "Categorical": Categorical,
    "Bernoulli": Bernoulli,
    "Normal": Normal,
    "HeteroscedasticNormal": HeteroscedasticNormal,
    "StudentT": StudentT,
    "Poisson": Poisson,
    "CensoredNormal": CensoredNormal,
}

__all__ = [
    "Bernoulli",
    "Categorical",
    "CensoredNormal",
    "HeteroscedasticNormal",
    "Likelihood",
    "Normal",
    "Poisson",
    "StudentT",
    "registry",
]
