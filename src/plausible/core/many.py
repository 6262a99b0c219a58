"""Batches of several data sets at once, stacked along a leading axis of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .data import Source
from .model import InternalBatch


class Stacked(Source):
    """The batches of several sources of one shape."""

    def __init__(self, parts: Sequence[Source]):
        first = parts[0]
        for part in parts[1:]:
            if (part.num_data, part.batch_size, part.steps_per_epoch) != (
                first.num_data,
                first.batch_size,
                first.steps_per_epoch,
            ):
                raise ValueError(
                    f"the data sets of one fit_many must have one shape, got N = {part.num_data:g} and "
                    f"{first.num_data:g}; call fit for each"
                )
        self.parts = list(parts)
        self.num_data, self.batch_size, self.steps_per_epoch = first.num_data, first.batch_size, first.steps_per_epoch

    def batch(self, step: int) -> InternalBatch | None:
        """The batches of a step."""
        return self._stack([p.batch(step) for p in self.parts])

    def full(self) -> InternalBatch | None:
        """All data of every set."""
        return self._stack([_weighted(p.full()) for p in self.parts])

    def _stack(self, found: list[Any]) -> InternalBatch | None:
        return None if found[0] is None else pytree.tree_map(lambda *tensors: torch.stack(tensors), *found)

    def sweep(self) -> Iterator[InternalBatch]:
        """Refused: every set is swept by itself, through `parts`."""
        raise NotImplementedError

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """Blocks of the first set's inputs."""
        return self.parts[0].some_inputs(limit)


def _weighted(batch: InternalBatch | None) -> InternalBatch | None:
    """The batch with a weight for every example: `vmap` has no axis for a missing one."""
    if batch is None or batch[2] is not None:
        return batch
    first = pytree.tree_leaves(batch[0])[0]
    return InternalBatch((batch[0], batch[1], torch.ones(first.shape[0], device=first.device)))
