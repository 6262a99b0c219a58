"""Bayesian deep learning for PyTorch: bring a network, state a likelihood and a prior, get a posterior."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names, as editors and type checkers follow them; the same ones are loaded below
    from . import datasets as datasets
    from . import evidence as evidence
    from . import metrics as metrics
    from . import networks as networks
    from . import optim as optim
    from . import plots as plots
    from .core import callbacks as callbacks
    from .core import hyperpriors as hyperpriors
    from .core import likelihoods as likelihoods
    from .core import posteriors as posteriors
    from .core import priors as priors
    from .core.density import LogDensity
    from .core.diagnostics import Diagnostics
    from .core.errors import NotSupported
    from .core.evidence import Evidence
    from .core.files.checkpoint import Checkpoint
    from .core.files.posterior_file import load
    from .core.fit import fit, fit_many
    from .core.method import Method
    from .core.model import BayesianModel
    from .core.posteriors import Posterior
    from .core.posteriors.mixture import mixture
    from .core.predictive import Predictive
    from .inference.averaging import SWAG, MultiSWAG
    from .inference.laplace import Laplace
    from .inference.mcmc import HMC, MALA, NUTS, SGHMC, SGLD, CyclicalSGMCMC, Metropolis
    from .inference.natural_gradient import IVON, KFAC, OGN, VOGN, NaturalGradientVI, NoisyKFAC
    from .inference.point import MAP, DeepEnsemble
    from .inference.variational import ADVI, BayesByBackprop, ConcreteDropout, MCDropout
    from .report.comparison import Comparison, compare

__version__ = "0.1.0"

# Each name is loaded when it is first asked for: `plausible --help` imports this package, and torch takes seconds.
_MODULES = {
    "callbacks": "core.callbacks",
    "datasets": "datasets",
    "evidence": "evidence",
    "hyperpriors": "core.hyperpriors",
    "likelihoods": "core.likelihoods",
    "metrics": "metrics",
    "networks": "networks",
    "optim": "optim",
    "plots": "plots",
    "posteriors": "core.posteriors",
    "priors": "core.priors",
}
_HOMES = {
    "ADVI": "inference.variational",
    "HMC": "inference.mcmc",
    "IVON": "inference.natural_gradient",
    "KFAC": "inference.natural_gradient",
    "MALA": "inference.mcmc",
    "NUTS": "inference.mcmc",
    "OGN": "inference.natural_gradient",
    "MAP": "inference.point",
    "SGHMC": "inference.mcmc",
    "SGLD": "inference.mcmc",
    "SWAG": "inference.averaging",
    "VOGN": "inference.natural_gradient",
    "BayesByBackprop": "inference.variational",
    "BayesianModel": "core.model",
    "Checkpoint": "core.files.checkpoint",
    "Comparison": "report.comparison",
    "ConcreteDropout": "inference.variational",
    "CyclicalSGMCMC": "inference.mcmc",
    "DeepEnsemble": "inference.point",
    "Diagnostics": "core.diagnostics",
    "Evidence": "core.evidence",
    "Laplace": "inference.laplace",
    "LogDensity": "core.density",
    "MCDropout": "inference.variational",
    "Method": "core.method",
    "Metropolis": "inference.mcmc",
    "MultiSWAG": "inference.averaging",
    "NaturalGradientVI": "inference.natural_gradient",
    "NoisyKFAC": "inference.natural_gradient",
    "NotSupported": "core.errors",
    "Posterior": "core.posteriors",
    "Predictive": "core.predictive",
    "compare": "report.comparison",
    "fit": "core.fit",
    "fit_many": "core.fit",
    "load": "core.files.posterior_file",
    "mixture": "core.posteriors.mixture",
}

__all__ = [
    "ADVI",
    "HMC",
    "IVON",
    "KFAC",
    "MALA",
    "MAP",
    "NUTS",
    "OGN",
    "SGHMC",
    "SGLD",
    "SWAG",
    "VOGN",
    "BayesByBackprop",
    "BayesianModel",
    "Checkpoint",
    "Comparison",
    "ConcreteDropout",
    "CyclicalSGMCMC",
    "DeepEnsemble",
    "Diagnostics",
    "Evidence",
    "Laplace",
    "LogDensity",
    "MCDropout",
    "Method",
    "Metropolis",
    "MultiSWAG",
    "NaturalGradientVI",
    "NoisyKFAC",
    "NotSupported",
    "Posterior",
    "Predictive",
    "callbacks",
    "compare",
    "datasets",
    "evidence",
    "fit",
    "fit_many",
    "hyperpriors",
    "likelihoods",
    "load",
    "metrics",
    "mixture",
    "networks",
    "optim",
    "plots",
    "posteriors",
    "priors",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next look finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
