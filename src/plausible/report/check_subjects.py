"""Every method as `plausible check` runs it: with numbers for a regression of three weights, and what it claims there."""

from __future__ import annotations

from ..inference.averaging import SWAG, MultiSWAG
from ..inference.laplace import Laplace
from ..inference.mcmc import HMC, MALA, NUTS, SGHMC, SGLD, CyclicalSGMCMC, Metropolis
from ..inference.natural_gradient import IVON, KFAC, OGN, VOGN, NaturalGradientVI, NoisyKFAC
from ..inference.point import MAP, DeepEnsemble
from ..inference.variational import ADVI, BayesByBackprop, ConcreteDropout, MCDropout
from .checking import Subject

CLIMB = MAP(learning_rate=0.02)
SUBJECTS: dict[str, Subject] = {
    "map": Subject(method=CLIMB, claim="centre"),
    "deep-ensemble": Subject(method=DeepEnsemble(members=3, base=CLIMB), claim="centre"),
    "swag": Subject(method=SWAG(base=CLIMB, rank=3), claim="centre"),
    "multiswag": Subject(method=MultiSWAG(modes=3, base=SWAG(base=CLIMB, rank=3)), claim="centre"),
    "laplace": Subject(method=Laplace(structure="full", base=CLIMB), slack=0.01),
    "advi": Subject(method=ADVI(num_samples=8, learning_rate=0.02), claim="independent", slack=0.05, steps=3000),
    "advi-full": Subject(method=ADVI(family="full", num_samples=8, learning_rate=0.02), slack=0.05, steps=3000),
    "bayes-by-backprop": Subject(
        method=BayesByBackprop(num_samples=8, learning_rate=0.02), claim="independent", slack=0.05, steps=3000
    ),
    "mc-dropout": Subject(method=MCDropout(rate=0.05, base=CLIMB), claim="centre"),
    "concrete-dropout": Subject(method=ConcreteDropout(base=CLIMB), claim="centre"),
    "vogn": Subject(method=VOGN(num_samples=4), claim="centre", steps=500),
    "ogn": Subject(method=OGN(), claim="centre"),
    "ivon": Subject(method=IVON(num_samples=8), claim="independent", slack=0.05, steps=1500),
    "kfac": Subject(method=KFAC(), slack=0.01),
    "noisy-kfac": Subject(method=NoisyKFAC(num_samples=8), slack=0.05),
    "natural-gradient-vi": Subject(method=NaturalGradientVI(), slack=0.01, steps=50),
    "hmc": Subject(method=HMC(), steps=1500, chains=8, simulations=200),
    "nuts": Subject(method=NUTS(), steps=1000, chains=8, simulations=200),
    "mala": Subject(method=MALA(), steps=5000, chains=8),
    "metropolis": Subject(method=Metropolis(), steps=12000, chains=8),
    # In batches of a third of the data: a gradient that is not on the scale of all of them would be seen.
    "sgld": Subject(method=SGLD(step_size=0.003), slack=0.1, steps=20000, chains=8, batch_size=8),
    "sghmc": Subject(method=SGHMC(step_size=0.02, friction=2.0), slack=0.1, steps=10000, chains=8),
    "cyclical-sgmcmc": Subject(method=CyclicalSGMCMC(), claim="centre", steps=2000),
}
