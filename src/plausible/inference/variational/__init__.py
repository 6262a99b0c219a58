"""Distributions fitted by climbing a bound on the evidence."""

from .advi import ADVI
from .bayes_by_backprop import BayesByBackprop
from .concrete_dropout import ConcreteDropout
from .mc_dropout import MCDropout

__all__ = ["ADVI", "BayesByBackprop", "ConcreteDropout", "MCDropout"]
