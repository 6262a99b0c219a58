"""Normal distributions fitted by natural gradients, at about the cost of an optimiser."""

from .full import NaturalGradientVI
from .ivon import IVON
from .kfac import KFAC
from .noisy_kfac import NoisyKFAC
from .ogn import OGN
from .vogn import VOGN

__all__ = ["IVON", "KFAC", "OGN", "VOGN", "NaturalGradientVI", "NoisyKFAC"]
