"""Bayesian deep learning for PyTorch: bring a network, state a likelihood and a prior, get a posterior."""

from . import metrics, networks
from .core import callbacks, hyperpriors, likelihoods, posteriors, priors
from .core.density import LogDensity
from .core.diagnostics import Diagnostics
from .core.errors import NotSupported
from .core.evidence import Evidence
from .core.files.checkpoint import Checkpoint
from .core.files.posterior_file import load
from .core.fit import fit, fit_many
from .core.method import Method
from .core.model import BayesianModel
from .core.posteriors import Posterior, mixture
from .core.predictive import Predictive
from .inference.averaging import SWAG, MultiSWAG
from .inference.mcmc import HMC
from .inference.point import MAP, DeepEnsemble

__version__ = "0.1.0"

__all__ = [
    "HMC",
    "MAP",
    "SWAG",
    "BayesianModel",
    "Checkpoint",
    "DeepEnsemble",
    "Diagnostics",
    "Evidence",
    "LogDensity",
    "Method",
    "MultiSWAG",
    "NotSupported",
    "Posterior",
    "Predictive",
    "callbacks",
    "fit",
    "fit_many",
    "hyperpriors",
    "likelihoods",
    "load",
    "metrics",
    "mixture",
    "networks",
    "posteriors",
    "priors",
]
