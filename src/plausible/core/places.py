"""How much of a batch is examples: one that an epoch's end cuts short is filled up."""

from __future__ import annotations

import torch
from torch import Tensor

from .data import Resident
from .many import Stacked
from .model import InternalBatch
from .source import Source


def filled(source: Source, step: int, batch: InternalBatch) -> Tensor:
    """The share of a batch's places that hold examples: those behind the last that has a say only fill it up."""
    weights = _without_the_users(source, step, batch)
    count = torch.arange(1, len(weights) + 1, dtype=torch.float64, device=weights.device)
    return (count * (weights != 0)).max() / len(weights)


def _without_the_users(source: Source, step: int, batch: InternalBatch) -> Tensor:
    """Weights of the places, without the user's own where those can be told apart."""
    first = source.parts[0] if isinstance(source, Stacked) else source  # they have one shape
    if isinstance(first, Resident):
        return first.indices(step)[1]
    return batch[2][0] if isinstance(source, Stacked) else batch[2]
