"""Markov chain Monte Carlo."""

from .hmc import HMC

__all__ = ["HMC"]
