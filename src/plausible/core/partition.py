"""Batches of a fixed partition, for methods that remember something of every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..weights.rng import generator
from .data import Resident
from .errors import NotSupported
from .model import InternalBatch
from .source import Nothing, Source

PICKS = 0x7069636B  # the stream of a run's seed that picks batches


class Placed(NamedTuple):
    """A batch on the scale of all data, and which of the partition it is."""

    batch: InternalBatch
    place: Tensor


class Partitioned(Source):
    """The batches of a source's first epoch, each as likely as another at every step: with replacement.

    A batch stands for all data times its share of them, so that the plain average over the partition is the log joint, also
    where the last batch is smaller.
    """

    def __init__(self, source: Source):
        if isinstance(source, Nothing):
            raise NotSupported("a fixed partition needs data, and a LogDensity has none: use variance_reduction=None")
        if not isinstance(source, Resident):
            raise NotSupported("a fixed partition needs data given as tensors (x, y), not a Dataset or a DataLoader")
        self.source = source
        self.num_data, self.batch_size, self.steps_per_epoch = (
            source.num_data,
            source.batch_size,
            source.steps_per_epoch,
        )

    def _placed(self, place: int) -> Placed:
        inputs, targets, weights = self.source.batch(place)  # batches of epoch 0, whenever they are asked for
        real = min(self.batch_size, self.source.size - place * self.batch_size)
        weights = weights * (real * self.steps_per_epoch / self.source.size)
        return Placed(InternalBatch((inputs, targets, weights)), torch.tensor(place, device=self.source.device))

    def batch(self, step: int) -> Any:
        """A batch picked by (seed, step)."""
        pick = torch.randint(self.steps_per_epoch, (), generator=generator(self.source.seed, PICKS, step))
        return self._placed(int(pick))

    def look(self, step: int, limit: int) -> InternalBatch:
        """Of the partition itself, in order."""
        return self.source.look(0, limit)

    def full(self, device: torch.device | None = None) -> InternalBatch:
        """All data as one batch."""
        return self.source.full(device)

    def sweep(self) -> Iterator[Any]:
        """Every batch once."""
        return (self._placed(place) for place in range(self.steps_per_epoch))

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """The source's."""
        return self.source.some_inputs(limit)
