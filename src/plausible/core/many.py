"""Batches of several data sets at once, stacked along a leading axis of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch.utils import _pytree as pytree

from . import batch as batches
from .data import Resident
from .model import InternalBatch
from .source import Source

JOINED = 256 * 1024**2  # bytes of data that are copied to be one behind another


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
        self._joined = Joined(self.parts) if _can_be_joined(self.parts) else None

    def batch(self, step: int) -> InternalBatch | None:
        """The batches of a step."""
        if self._joined is not None:
            return self._joined.batch(step)
        return self._stack([p.batch(step) for p in self.parts])

    def full(self, device: torch.device | None = None) -> InternalBatch | None:
        """All data of every set."""
        return self._stack([_weighted(p.full(device)) for p in self.parts])

    def _stack(self, found: list[Any]) -> InternalBatch | None:
        return None if found[0] is None else pytree.tree_map(lambda *tensors: torch.stack(tensors), *found)

    def sweep(self) -> Iterator[InternalBatch]:
        """All sets at once."""
        for found in zip(*(p.sweep() for p in self.parts), strict=True):
            yield self._stack(list(found))  # type: ignore[misc]  # a set that is swept has batches

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """Blocks of the first set's inputs."""
        return self.parts[0].some_inputs(limit)


def _weighted(batch: InternalBatch | None) -> InternalBatch | None:
    """The batch with a weight for every example: `vmap` has no axis for a missing one."""
    if batch is None or batch[2] is not None:
        return batch
    first = pytree.tree_leaves(batch[0])[0]
    return InternalBatch((batch[0], batch[1], torch.ones(first.shape[0], device=first.device)))


class Joined:
    """Small sets one behind another in memory: one gather makes the batches of all runs, where each alone would be slower."""

    def __init__(self, parts: Sequence[Resident]):
        first = parts[0]
        self.first, self.count = first, len(parts)
        self.data = pytree.tree_map(lambda *tensors: torch.cat(tensors), *((p.inputs, p.targets) for p in parts))
        self.begins = torch.arange(len(parts), device=first.device).unsqueeze(1) * first.size
        own_order = {p.seed: p for p in parts}  # the order follows from the seed and the size
        self.leaders, places = list(own_order.values()), {seed: i for i, seed in enumerate(own_order)}
        self.leader = torch.tensor([places[p.seed] for p in parts], device=first.device)
        self._epoch, self._order = -1, torch.empty(0)

    def batch(self, step: int) -> InternalBatch:
        """What stacking the batches of all parts gives."""
        epoch = step // self.first.steps_per_epoch
        if epoch != self._epoch:
            orders = torch.stack([part.order(epoch) for part in self.leaders])
            self._epoch, self._order = epoch, orders[self.leader] + self.begins
        begin = step % self.first.steps_per_epoch * self.first.batch_size
        inputs, targets = batches.rows(self.data, self._order[:, begin : begin + self.first.batch_size])
        _, weights = self.first.indices(step)
        return InternalBatch((inputs, targets, weights.expand(self.count, -1)))


def _can_be_joined(parts: Sequence[Source]) -> TypeGuard[Sequence[Resident]]:
    """Whether they are small tensors on the device, all of one shape and without weights of their own."""
    if not all(type(p) is Resident and p.weights is None and p.home == p.device for p in parts):
        return False
    leaves = [pytree.tree_leaves((p.inputs, p.targets)) for p in parts]  # type: ignore[attr-defined]
    forms = {tuple((tuple(t.shape), t.dtype) for t in own) for own in leaves}
    return len(forms) == 1 and sum(t.numel() * t.element_size() for own in leaves for t in own) <= JOINED
