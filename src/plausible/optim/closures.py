"""What `step(closure)` does: the user's closure at draws of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .gradients import snapshot, unchanged

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer


class _BroughtNothingError(Exception):
    """A closure left the gradients as they were."""


def run(optimizer: BayesianOptimizer, closure: Callable[[], Any]) -> Any:
    """Run the closure at every draw of a step; the mean of what it returns."""
    with torch.enable_grad():
        if optimizer.held or not optimizer.draws_weights:
            return closure()
        weights, ledger, losses = list(optimizer.weights().values()), optimizer.ledger, []
        before, (draws, done) = snapshot(weights), ledger.set_aside()
        try:
            for _ in range(optimizer.num_samples):
                with optimizer.sampled():
                    losses.append(closure())
                    if draws and losses == [None] and unchanged(weights, before):
                        raise _BroughtNothingError
        except _BroughtNothingError:
            # The closure of a loop that has run backward at draws of its own, as Lightning's manual optimisation gives.
            ledger.draws, ledger.done = draws, done
            return None
        except BaseException:
            ledger.clear()  # of the draws before the one at which it raised
            raise
    if len(losses) == 1 or any(loss is None for loss in losses):
        return losses[-1]
    return sum(losses) / len(losses)
