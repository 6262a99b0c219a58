"""Where the modes of a run start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..weights import tree
from ..weights.algebra import Weights
from ..weights.rng import generator
from .posteriors.mixture import Mixture
from .posteriors.posterior import Posterior
from .target import Target

INIT = 0x696E6974  # the stream of a run's seed that initialises


def mode_seed(seed: int, mode: int) -> int:
    """The seed with which a mode is initialised."""
    return generator(seed, INIT, mode).initial_seed()


def starts(model: Any, init: Any, modes: int, seed: int, device: torch.device) -> list[Weights]:
    """One set of unconstrained values per mode."""
    reset = init == "reset" if isinstance(init, str) else False
    if (init is None and modes > 1) or reset:
        _refuse_unreachable(model)
    params = [_start(model, init, m, modes, seed) for m in range(modes)]
    return [{k: v.detach().to(device, copy=True) for k, v in p.items()} for p in params]


def _start(model: Any, init: Any, mode: int, modes: int, seed: int) -> Weights:
    if isinstance(init, str):
        if init == "network":
            return model.init(None)
        if init == "reset":
            return model.init(mode_seed(seed, mode))
        if init == "prior":
            return tree.unstack(model.sample_prior(1, seed=mode_seed(seed, mode)), 0)
        raise ValueError(f'init must be None, "network", "reset", "prior", a posterior or params, got {init!r}')
    if init is None:
        return model.init(None if mode == 0 else mode_seed(seed, mode))
    if isinstance(init, Posterior):
        return _from_params(model, _from_posterior(init, mode, modes), mode, modes=1)
    if isinstance(init, Mapping):
        return _from_params(model, init, mode, modes)
    raise TypeError(f"init must be a string, a posterior or a dictionary of tensors, got {type(init).__name__}")


def _from_posterior(posterior: Posterior, mode: int, modes: int) -> Weights:
    if isinstance(posterior, Mixture):
        if modes not in (1, len(posterior.components)):
            raise ValueError(f"init has {len(posterior.components)} components, which cannot start {modes} modes")
        return posterior.components[mode].mean
    return posterior.mean


def _from_params(model: Target, given: Mapping[str, Tensor], mode: int, modes: int) -> Weights:
    missing = sorted(model.start.keys() - given.keys())
    strange = sorted(given.keys() - model.start.keys())
    if missing or strange:
        raise ValueError(f"init must have the model's unknowns; missing {missing[:4]}, unknown {strange[:4]}")
    chosen: Weights = {}
    for k, start in model.start.items():
        value = torch.as_tensor(given[k])
        if value.shape == (modes, *start.shape) and modes > 1:
            value = value[mode]
        if value.shape != start.shape:
            raise ValueError(f"init[{k!r}] must have shape {tuple(start.shape)}, got {tuple(value.shape)}")
        chosen[k] = value.to(start.dtype)
    return chosen


def _refuse_unreachable(model: Any) -> None:
    lost = model.random_valued()
    if lost:
        raise ValueError(
            f"{', '.join(lost)} would be the same in every mode: no reset_parameters reaches them; give their module one, "
            'or start with init="prior"'
        )


def refuse_start(mode: int, state: Mapping[str, Tensor]) -> None:
    """An error where a chain starts at a point of no density: no step would ever leave it."""
    if bool(torch.isfinite(state["log_joint"])) and bool(torch.isfinite(state["slope"]).all()):
        return
    value = float(state["log_joint"])
    what = f"the log joint is {value:g}" if not math.isfinite(value) else "the slope of the log joint is not finite"
    raise ValueError(
        f"{what} where mode {mode} starts; start where the density is positive: "
        'pl.fit(..., init="network" or params), or data and a prior that allow these weights'
    )
