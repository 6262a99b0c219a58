"""What a user calls data, read as a source of batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from ..weights.rng import permutation
from . import batch as batches
from .loaded import EpochOrder, Loaded
from .model import BayesianModel, InternalBatch
from .source import ORDER, Nothing, Source, check_targets, warn_of_few
from .target import Target

SWEPT = 1024  # examples at a time of a sweep on a GPU


class Resident(Source):
    """Tensors that stay on the device and are indexed there; on the host if they would fill half of a GPU."""

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        weights: Tensor | None,
        batch_size: int,
        seed: int,
        device: torch.device,
        num_data: float | None,
        dtype: torch.dtype = torch.float32,
    ):
        # N / B needs more digits than a half has.
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.home = device if batches.fits(device, (inputs, targets)) else torch.device("cpu")
        self.inputs, self.targets = batches.place((inputs, targets), self.home)
        self.weights = None if weights is None else weights.to(device)
        self.size = batches.length(inputs)
        self.device, self.seed = device, seed
        self.num_data = float(num_data if num_data is not None else self.size if weights is None else weights.sum())
        self.batch_size = min(batch_size, self.size)
        self.steps_per_epoch = math.ceil(self.size / self.batch_size)
        if num_data is not None:
            warn_of_few(num_data, self.batch_size)
        self._epoch, self._order = -1, torch.empty(0)
        self._even = self._scaled(self.batch_size)
        self._ragged = self._scaled(self.size - (self.steps_per_epoch - 1) * self.batch_size)

    def _scaled(self, real: int) -> Tensor:
        weights = torch.zeros(self.batch_size, dtype=self.dtype)
        weights[:real] = self.num_data / real
        return weights.to(self.device)

    def order(self, epoch: int) -> Tensor:
        """All examples of an epoch, in batches that are filled up."""
        if epoch != self._epoch:
            order = permutation(self.size, self.seed, ORDER, epoch)
            missing = self.steps_per_epoch * self.batch_size - self.size
            self._epoch, self._order = epoch, torch.cat([order, order[:missing]]).to(self.device)
        return self._order

    def indices(self, step: int) -> tuple[Tensor, Tensor]:
        """Which examples a step takes, and their weights before the user's own."""
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen = self.order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        return chosen, self._ragged if place == self.steps_per_epoch - 1 else self._even

    def batch(self, step: int) -> InternalBatch:
        """The batch of a step."""
        chosen, scale = self.indices(step)
        if self.weights is not None:
            # Not rescaled to N within a batch: a batch of heavy examples counts for more than one of light ones.
            scale = scale * self.weights[chosen] / self.weights.mean()
        found = batches.rows((self.inputs, self.targets), chosen.to(self.home))
        return InternalBatch((*(found if self.home == self.device else batches.place(found, self.device)), scale))

    def look(self, step: int, limit: int) -> InternalBatch:
        """Several batches as one."""
        count = max(1, min(self.steps_per_epoch, limit // self.batch_size))
        found = [self.batch(s) for s in range(step, step + count)]
        return InternalBatch(pytree.tree_map(lambda *parts: torch.cat(parts), *map(tuple, found)))

    def full(self, device: torch.device | None = None) -> InternalBatch:
        """All data as one batch."""
        weights = self.weights
        if weights is None:
            weights = (
                None
                if self.num_data == self.size
                else torch.full_like(self._even[:1], self.num_data / self.size).expand(self.size)
            )
        else:
            weights = weights * (self.num_data / weights.sum())
        return InternalBatch((*batches.place((self.inputs, self.targets), device or self.device), weights))

    def sweep(self) -> Iterator[InternalBatch]:
        """All data in order."""
        own = torch.ones(self.size, dtype=self.dtype, device=self.device) if self.weights is None else self.weights
        own = own * (self.num_data / own.sum())
        # A sum does not depend on the batches it is taken in, and a GPU waits less for large ones.
        size = max(self.batch_size, SWEPT) if self.device.type == "cuda" else self.batch_size
        for begin in range(0, self.size, size):
            part = slice(begin, min(begin + size, self.size))
            found = batches.place(batches.rows((self.inputs, self.targets), part), self.device)
            yield InternalBatch((*found, own[part]))

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """Blocks of training inputs in a seeded order."""
        order = permutation(self.size, self.seed, ORDER, 0)[:limit].to(self.home)
        for chosen in order.split(self.batch_size):
            yield batches.rows(self.inputs, chosen)


def make_source(
    model: Target, data: Any, *, batch_size: int, seed: int, device: torch.device, num_data: float | None = None
) -> Source:
    """Read what a user calls data."""
    if not isinstance(model, BayesianModel):
        if data is not None:
            raise ValueError(f"a {type(model).__name__} has no data of its own: fit it with data=None")
        return Nothing()
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, got {batch_size}")
    if num_data is not None and not num_data > 0:
        raise ValueError(f"num_data must be positive, got {num_data}")
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        sampler = None if isinstance(data, IterableDataset) else EpochOrder(len(data), seed)  # type: ignore[arg-type]
        data = DataLoader(data, batch_size=batch_size, sampler=sampler, collate_fn=default_collate)
    if isinstance(data, DataLoader):
        return Loaded(model, data, seed, device, num_data)
    if data is None:
        raise TypeError("data is None, which only a LogDensity can do without; give (x, y), a Dataset or a DataLoader")
    return _resident(model, data, batch_size, seed, device, num_data)


def _resident(
    model: BayesianModel, data: Any, batch_size: int, seed: int, device: torch.device, num_data: float | None
) -> Resident:
    if isinstance(data, Mapping | tuple | list) or model.batch_rule or hasattr(data, "keys"):
        inputs, targets, weights = batches.split(data, model.batch_rule)
    else:
        raise TypeError(f"data must be (x, y), a Dataset or a DataLoader, got {type(data).__name__}")
    inputs, targets = batches.as_tensors((inputs, targets), model.dtype)
    size = batches.length(inputs)
    if size == 0:
        raise ValueError("the data are empty: x has no rows")
    if batches.length(targets) != size:
        raise ValueError(f"inputs and targets must have one length, got {size} and {batches.length(targets)}")
    batches.check_dtype(inputs, model.dtype)
    batches.check_finite(inputs, "inputs")
    if weights is not None:
        weights = batches.one_for_each(weights, size).to(model.dtype)
        batches.check_weights(weights)
        if not bool(weights.sum() > 0):
            raise ValueError("all weights are zero, so there are no data")
    check_targets(model, inputs, targets, device)
    return Resident(inputs, targets, weights, batch_size, seed, device, num_data, model.dtype)
