"""What an estimator uses where it is told nothing, or told by name."""

from __future__ import annotations

import copy
import importlib
import math
import numbers
import pkgutil
import re
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import nn

from .. import inference
from ..core.method import Method
from ..inference.point import MAP, DeepEnsemble
from ..networks import MLP
from ..weights.rng import forked

NETWORK = 0x6E6574  # the stream of a seed that initialises the network
HIDDEN = (64,)
SMALLEST_BATCH, LARGEST_BATCH, BATCHES = 64, 512, 32  # about so many batches an epoch, in these bounds
EPOCHS, FEWEST_STEPS = 50, 1000  # whichever is longer: a small table needs steps, a large one passes
SLOPES = 32_000  # of methods that see all data at every step: 500 transitions of HMC


def method_for(given: Method | str | None) -> Method:
    """A method itself, one by name in any spelling of its hyphens, or the default.

    The default is a deep ensemble: as good as any on tables, exact when it predicts (nothing is sampled), and five
    forward passes long.
    """
    if given is None:
        return DeepEnsemble(base=MAP(learning_rate=0.01))
    if isinstance(given, Method):
        return given
    known = _methods_by_name()
    found = known.get(given.replace("-", "").replace("_", "").lower()) if isinstance(given, str) else None
    if found is None:
        listed = ", ".join(sorted(_kebab(c.__name__) for c in known.values()))
        raise ValueError(f"method must be an inference method such as pl.SWAG(), or one of {listed}; got {given!r}")
    return found()


def _methods_by_name() -> dict[str, type[Method]]:
    names = [module.name for module in pkgutil.iter_modules(inference.__path__)]
    families = [importlib.import_module(f"{inference.__name__}.{name}") for name in names]
    public = [getattr(family, name) for family in families for name in getattr(family, "__all__", ())]
    return {c.__name__.lower(): c for c in public if isinstance(c, type) and issubclass(c, Method)}


def _kebab(class_name: str) -> str:
    return re.sub(r"(?<=[A-Za-z])(?=[A-Z][a-z])", "-", class_name).lower()


def network_for(given: Any, num_inputs: int, num_outputs: int, seed: int, dtype: torch.dtype) -> nn.Module:
    """A copy of a given module, what a given function builds, or a perceptron with one hidden layer."""
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)  # what its owner does to it later must not change what is stored of the estimator
    with forked(seed, NETWORK):
        if given is None:
            built: Any = MLP(num_inputs, HIDDEN, num_outputs)
        else:
            built = given(num_inputs, num_outputs) if callable(given) else given
    if not isinstance(built, nn.Module):
        raise TypeError(
            f"network must be a torch.nn.Module or a function (num_inputs, num_outputs) -> module, got {built!r}"
        )
    return built.to(dtype)


def dtype_for(table: np.dtype, device: torch.device | str | None) -> torch.dtype:
    """A table's own precision on a CPU, where small networks are as quick in float64; float32 on anything else."""
    on_cpu = not torch.cuda.is_available() if device is None else torch.device(device).type == "cpu"
    return torch.float64 if on_cpu and table == np.float64 else torch.float32


def batch_size_for(rows: int) -> int:
    """Small enough for many steps an epoch, large enough to be quick."""
    return min(max(SMALLEST_BATCH, rows // BATCHES), LARGEST_BATCH)


def steps_for(method: Method, rows: int, batch_size: int) -> int:
    """How long to run."""
    own = method.unfold()[0]
    if own.full_batch:
        return SLOPES // own.slopes_per_step
    return max(FEWEST_STEPS, EPOCHS * math.ceil(rows / batch_size))


def seed_from(random_state: int | np.random.RandomState | None) -> int:
    """A seed of ours from scikit-learn's `random_state`."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
