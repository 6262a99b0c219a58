"""A draw that is held in the network between steps, for loops that call `step()` bare; what others write there is lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

log = logging.getLogger("plausible")


class Placed(NamedTuple):
    """Which draw is held, and the versions of the weights that have it."""

    call: int
    versions: list[int]


def versions(optimizer: BayesianOptimizer) -> list[int]:
    """Of the weights, which every write counts up."""
    return [p._version for p in optimizer.weights().values()]


@torch.no_grad()
def warn_if_written(optimizer: BayesianOptimizer, placed: Placed | None) -> None:
    """Say that others wrote weights while a draw was held; a draw that was put back is nothing new."""
    if placed is None or versions(optimizer) == placed.versions:
        return
    weights, mean = optimizer.weights(), optimizer.means()
    draw = {k: mean[k].to(p.dtype).clone() for k, p in weights.items()}
    for k, shift in (optimizer.deviation_of(placed.call) or {}).items():
        draw[k].add_(shift)
    if not all(torch.equal(draw[k], p) for k, p in weights.items()):
        log.warning(
            "weights were written while %s held a draw in the network, and that is lost, since its mean comes back; call "
            "optimizer.eval() before weights are loaded or changed, and optimizer.train() afterwards",
            type(optimizer).__name__,
        )
