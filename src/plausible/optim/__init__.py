"""The library's updates as `torch.optim.Optimizer`s, for a training loop that is the user's own."""

from .ivon import IVON
from .kfac import KFAC
from .noisy_kfac import NoisyKFAC
from .ogn import OGN
from .optimizer import BayesianOptimizer
from .sghmc import SGHMC
from .sgld import SGLD
from .vogn import VOGN

__all__ = ["IVON", "KFAC", "OGN", "SGHMC", "SGLD", "VOGN", "BayesianOptimizer", "NoisyKFAC"]
