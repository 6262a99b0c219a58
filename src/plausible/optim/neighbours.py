"""Two optimisers of one loss must not draw the same numbers."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

log = logging.getLogger("plausible")


class Neighbours:
    """Optimisers whose weights had gradients of the same backward pass, as parts of one network have.

    With one seed their draws are the same numbers: what should be independent, by the posteriors that they answer with, is
    not, and gradients at such draws see a curvature between the parts as if it were their own.
    """

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[BayesianOptimizer, int] = weakref.WeakKeyDictionary()
        self._told: weakref.WeakSet[BayesianOptimizer] = weakref.WeakSet()

    def hook(self, optimizer: BayesianOptimizer) -> list:
        """On weights whose gradients are to tell."""
        alive = weakref.ref(optimizer)

        def came(weight: Tensor) -> None:
            own = alive()
            if own is not None:
                self._came(own)

        return [p.register_post_accumulate_grad_hook(came) for p in optimizer.weights().values()]

    def _came(self, optimizer: BayesianOptimizer) -> None:
        task = torch._C._current_graph_task_id()  # of the backward pass
        if self._last.get(optimizer) == task:
            return
        self._last[optimizer] = task
        if optimizer in self._told:
            return
        seed = optimizer.param_groups[0]["seed"]
        for other, last in list(self._last.items()):
            if last == task and other is not optimizer and other.param_groups[0]["seed"] == seed:
                self._told.update((optimizer, other))
                log.warning(
                    "%s and %s infer parts of one network with the same seed=%d, so they draw the same numbers and what they "
                    "answer is wrong; give one of them another seed",
                    type(other).__name__, type(optimizer).__name__, seed,
                )  # fmt: skip
                return


NEIGHBOURS = Neighbours()
