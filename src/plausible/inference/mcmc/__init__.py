"""Markov chain Monte Carlo."""

from .cyclical import CyclicalSGMCMC
from .hmc import HMC
from .mala import MALA
from .metropolis import Metropolis
from .nuts import NUTS
from .sghmc import SGHMC
from .sgld import SGLD

__all__ = ["HMC", "MALA", "NUTS", "SGHMC", "SGLD", "CyclicalSGMCMC", "Metropolis"]
