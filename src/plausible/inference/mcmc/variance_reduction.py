"""Gradients of batches that are less noisy near a place seen before (Dubey et al., 2016; Li et al., 2019).

Each takes from the batch's gradient what the same batch gave at an older place, and adds the average of that over all batches,
so that the estimate stays unbiased and its noise is that of a difference, which vanishes as the places meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.model import BayesianModel, InternalBatch
from ...weights.algebra import Weights, add_, size

NAMES = (None, "svrg", "saga")
TABLE_BUDGET = 4 * 1024**3  # bytes of SAGA's table, all modes apart

Memory = dict[str, Any]


class Plain:
    """The batch's own gradient."""

    fixed_batches = False

    def swept_steps(self, num_steps: int, every: int) -> Sequence[int]:
        """Never."""
        return ()

    def init(self, model: Any, params: Weights) -> Memory:
        """Nothing to remember."""
        return {}

    def gather(self, model: Any, memory: Memory, params: Weights, batch: Any, first: bool) -> Memory:
        """Nothing to gather."""
        return memory

    def slope(self, model: Any, memory: Memory, params: Weights, batch: Any) -> tuple[Tensor, Weights]:
        """The log joint and its gradient."""
        return model.slope(params, batch)


class SVRG(Plain):
    """∇_B(w) − ∇_B(w̃) + ∇(w̃), where w̃ is where the chain was at the last sweep over all data.

    A batch costs two gradients, and a sweep as many as there are examples. Any batch that is as likely to hold one example as
    another keeps it unbiased.
    """

    def refuse_unsuitable(self, model: Any) -> None:
        """The log joint must be a sum over examples, the same whenever it is looked at."""
        if not isinstance(model, BayesianModel):
            raise NotSupported("variance_reduction needs data, and a LogDensity's gradient has no noise to reduce")
        network = model.network
        if network.statistics or network.written or network.draws or model.needs_key:
            raise NotSupported(
                "variance_reduction needs a log joint that is a sum over examples, and batch norm or dropout in training makes "
                "it depend on the batch or on chance; use group norm, or variance_reduction=None"
            )

    def swept_steps(self, num_steps: int, every: int) -> Sequence[int]:
        """Before the first step, and every so many steps."""
        return range(0, num_steps, every)

    def init(self, model: Any, params: Weights) -> Memory:
        """Room for the place and its gradient."""
        self.refuse_unsuitable(model)
        return {name: {k: torch.zeros_like(w) for k, w in params.items()} for name in ("place", "slope")}

    def gather(self, model: Any, memory: Memory, params: Weights, batch: Any, first: bool) -> Memory:
        """Add a part of the sum. A batch that stands for all data has the prior once, and so has the average of batches."""
        if first:
            memory = {
                "place": {k: w.clone() for k, w in params.items()},
                "slope": {k: torch.zeros_like(w) for k, w in params.items()},
            }
        inputs, targets, weights = batch
        share = weights.sum() / model.num_data
        scaled = weights / share.masked_fill(share == 0, 1.0)  # a batch of examples without weight has no share
        _, slope = model.slope(memory["place"], InternalBatch((inputs, targets, scaled)))
        add_(memory["slope"], slope, share)
        return memory

    def slope(self, model: Any, memory: Memory, params: Weights, batch: Any) -> tuple[Tensor, Weights]:
        """The batch's gradient with its noise taken off."""
        log_joint, slope = model.slope(params, batch)
        _, before = model.slope(memory["place"], batch)
        add_(add_(slope, before, -1.0), memory["slope"])
        return log_joint, slope


class SAGA(SVRG):
    """∇_B(w) − t_B + t̄, where t_B is what batch B of a fixed partition gave when it last came, and t̄ the average of all t.

    One gradient a step, and a table of one gradient for every batch. Batches come with replacement, each as likely as another
    at every step, so that the estimate is unbiased given everything before. A row is an epoch old on average, and some are
    several epochs old, where SVRG's place is half of one: while a chain moves, more noise is left than SVRG leaves.
    """

    fixed_batches = True

    def refuse_unsuitable(self, model: Any) -> None:
        """The table must fit besides."""
        super().refuse_unsuitable(model)
        each = sum(w.numel() * w.element_size() for w in model.start.values())
        needed = model.steps_per_epoch * each
        if needed > TABLE_BUDGET:
            raise NotSupported(
                f"SAGA's table of {model.steps_per_epoch} gradients of {size(model.start):,} weights would take {needed:,} "
                f'bytes, more than {TABLE_BUDGET:,}; take larger batches, or variance_reduction="svrg", which holds one'
            )

    def swept_steps(self, num_steps: int, every: int) -> Sequence[int]:
        """Once, to fill the table."""
        return range(min(1, num_steps))

    def init(self, model: Any, params: Weights) -> Memory:
        """An empty table."""
        self.refuse_unsuitable(model)
        rows = model.steps_per_epoch
        return {
            "table": {k: w.new_zeros((rows, *w.shape)) for k, w in params.items()},
            "average": {k: torch.zeros_like(w) for k, w in params.items()},
        }

    def gather(self, model: Any, memory: Memory, params: Weights, batch: Any, first: bool) -> Memory:
        """A row of the table."""
        if first:
            memory = {name: {k: torch.zeros_like(t) for k, t in part.items()} for name, part in memory.items()}
        self._renewed(memory, model.slope(params, batch.batch)[1], batch.place)
        return memory

    def slope(self, model: Any, memory: Memory, params: Weights, batch: Any) -> tuple[Tensor, Weights]:
        """The batch's gradient with its noise taken off; the table then has the new one."""
        log_joint, slope = model.slope(params, batch.batch)
        average = {k: a.clone() for k, a in memory["average"].items()}
        before = self._renewed(memory, slope, batch.place)
        return log_joint, add_({k: slope[k] - before[k] for k in slope}, average)

    def _renewed(self, memory: Memory, slope: Weights, place: Tensor) -> Weights:
        """Put a gradient into its row and return what was there."""
        before = {}
        for k, table in memory["table"].items():
            row = place.reshape(1)
            before[k] = table.index_select(0, row).squeeze(0).clone()
            table.index_put_((row,), slope[k].unsqueeze(0))  # `vmap` has no rule for `scatter_`
            memory["average"][k] += (slope[k] - before[k]) / table.shape[0]
        return before


_REDUCTIONS: dict[str | None, Plain] = {None: Plain(), "svrg": SVRG(), "saga": SAGA()}


def reduction(name: str | None) -> Plain:
    """The reduction of a name."""
    return _REDUCTIONS[name]
