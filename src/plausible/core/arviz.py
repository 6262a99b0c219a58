"""Chains handed over to ArviZ, an extra: `pip install plausible[arviz]`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import NotSupported

# What ArviZ calls the things that samplers note beside each draw.
STATISTICS = {
    "log_joint": "lp",
    "acceptance": "acceptance_rate",
    "divergent": "diverging",
    "energy": "energy",
    "leapfrogs": "n_steps",
    "depth": "tree_depth",
    "step_size": "step_size",
}


def to_arviz(chains: Sequence[Any]) -> Any:
    """Chains of equal length (`Samples`) as ArviZ takes them, with natural values of all unknowns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # announcements of its next version
            import arviz
    except ImportError as error:
        raise NotSupported("to_arviz needs ArviZ: pip install plausible[arviz]") from error
    length = min(len(chain) for chain in chains)
    natural = [torch.vmap(chain.model.constrain)(chain.draws) for chain in chains]
    posterior = {k: _joined([n[k] for n in natural], length) for k in natural[0]}
    shared = [k for k in chains[0].statistics if all(k in chain.statistics for chain in chains)]
    shared = [k for k in shared if not k.startswith("energy_")]  # of steps that are no draws
    noted = {STATISTICS.get(k, k): _joined([chain.statistics[k] for chain in chains], length) for k in shared}
    if "diverging" in noted:
        noted["diverging"] = noted["diverging"] > 0
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict({"posterior": posterior, "sample_stats": noted})
    return arviz.from_dict(posterior=posterior, sample_stats=noted or None)


def _joined(parts: Sequence[Tensor], length: int) -> Any:
    """(chains, draws, ...) as an array."""
    whole = torch.stack([part[:length] for part in parts]).detach().cpu()
    return (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()  # numpy has no bfloat16
