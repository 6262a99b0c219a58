"""Batches that a `DataLoader` makes, one by one."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SubsetRandomSampler

from ..weights.rng import forked, permutation
from . import batch as batches
from .model import BayesianModel, InternalBatch
from .source import ORDER, Source, check_targets, warn_of_few

DRAWS = 0x6C6F61646572  # the stream of a run's seed that loaders draw from
NO_BATCH = (
    "the data loader gives no batch at all; has its data set any examples, or does drop_last drop the only batch?"
)
WEIGHTLESS = 1000  # batches of a stream, one after another, that may be without weight before it is called empty


class Loaded(Source):
    """Batches that a `DataLoader` makes, or that are collated from a `Dataset`, moved to the device one by one."""

    def __init__(
        self, model: BayesianModel, loader: DataLoader, seed: int, device: torch.device, num_data: float | None
    ):
        self.model, self.loader, self.seed, self.device = model, loader, seed, device
        sized = not isinstance(loader.dataset, IterableDataset)
        if num_data is None and not sized:
            raise ValueError("an IterableDataset does not say how many examples there are; give fit(..., num_data=N)")
        # A sampler of a subset says which examples are data at all; others only say how they are taken.
        known = loader.sampler if isinstance(loader.sampler, SubsetRandomSampler) else loader.dataset
        self.num_data = float(num_data if num_data is not None else len(known))  # type: ignore[arg-type]
        if self.num_data == 0:
            raise ValueError("the data set is empty")
        self._given = num_data is not None
        self._examples, self._weighted = len(known) if sized else None, False  # type: ignore[arg-type]
        self.batch_size = loader.batch_size or _batch_sampler_size(loader)
        if num_data is not None:
            warn_of_few(num_data, self.batch_size)
        self.steps_per_epoch = max(1, len(loader) if sized else math.ceil(self.num_data / self.batch_size))
        self._next, self._iterator = -1, iter(())
        self._first: tuple[int, InternalBatch | None] = (-1, None)  # step and batch that the last epoch began with
        self._checked = False
        self._swept: float | None = None  # what the weights of a sweep sum to

    def batch(self, step: int) -> InternalBatch:
        """The batch of a step; steps in order are cheap, a jump replays the epoch up to it."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if step != self._next or place == 0:
            with self._seeded(epoch, 0):
                self._set_epoch(epoch)
                self._iterator = iter(self.loader)
            for skipped in range(place):
                self._draw(epoch, skipped)
        self._next = step + 1
        found = self._prepared(self._draw(epoch, place), check=epoch == 0)
        if place == 0:
            self._first = step, found
        return found

    def look(self, step: int, limit: int) -> InternalBatch:
        """The batch alone: more would have to be loaded."""
        known, found = self._first
        return found if known == step and found is not None else self.batch(step)

    def _set_epoch(self, epoch: int) -> None:
        for owner in (self.loader.sampler, self.loader.batch_sampler):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)  # type: ignore[union-attr]

    @contextlib.contextmanager
    def _seeded(self, epoch: int, call: int) -> Iterator[None]:
        """Whatever generator the loader draws from, what it draws is a function of (seed, epoch, call)."""
        owners = (self.loader, self.loader.sampler, getattr(self.loader.batch_sampler, "sampler", None))
        own = {id(g): g for g in (getattr(o, "generator", None) for o in owners) if isinstance(g, torch.Generator)}
        before = {i: g.get_state() for i, g in own.items()}
        try:
            with forked(self.seed, DRAWS, epoch, call):
                for g in own.values():
                    g.manual_seed(int(torch.randint(2**62, ())))
                yield
        finally:
            for i, g in own.items():
                g.set_state(before[i])

    def _draw(self, epoch: int, place: int) -> Any:
        """The next batch; of a stream the next that weighs anything, since weights alone say how much of N it stands for."""
        with self._seeded(epoch, place + 1):
            for _ in range(WEIGHTLESS):
                batch = self._following()
                weights = None if self._examples else batches.split(batch, self.model.batch_rule)[2]
                if weights is None or bool((batches.as_tensors(weights) != 0).any()):
                    return batch
        raise ValueError(f"the weights of {WEIGHTLESS} batches in a row are all zero, so there are no data")

    def _following(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:  # an iterable that ends early starts again
            self._iterator = iter(self.loader)
            try:
                return next(self._iterator)
            except StopIteration:
                raise ValueError(NO_BATCH) from None

    def _read(self, batch: Any, check: bool) -> tuple[Any, Any, Tensor]:
        """Inputs, targets and the user's own weights."""
        inputs, targets, weights = batches.split(batch, self.model.batch_rule)
        inputs, targets = batches.as_tensors((inputs, targets), self.model.dtype)
        if check:
            batches.check_finite(inputs, "inputs")
            check_targets(self.model, inputs, targets, self.device)
        size = batches.length(inputs)
        if weights is not None and not self._given:
            raise ValueError(
                "batches have weights, and N counts weights; give fit(..., num_data=their sum over the data)"
            )
        self._weighted = weights is not None
        if weights is None:
            return inputs, targets, torch.ones(size, dtype=self.model.dtype)
        own = batches.one_for_each(weights, size).to(self.model.dtype)
        batches.check_weights(own)
        return inputs, targets, own

    def _prepared(self, batch: Any, check: bool) -> InternalBatch:
        inputs, targets, own = self._read(batch, check)
        size = batches.length(inputs)
        # A batch of heavy examples counts for more than one of light ones; only where the number of examples is not
        # known must their weights stand for it.
        own = own * (self._examples / size if self._weighted and self._examples else self.num_data / own.sum())
        if size < self.batch_size:
            again = torch.arange(self.batch_size) % size
            inputs, targets = batches.rows((inputs, targets), again)
            own = torch.cat([own, torch.zeros(self.batch_size - size, dtype=own.dtype)])
        return InternalBatch(batches.place((inputs, targets, own), self.device))

    def full(self, device: torch.device | None = None) -> InternalBatch:
        """All data as one batch, loaded once."""
        parts = list(self._parts())
        inputs, targets, weights = batches.place(
            pytree.tree_map(lambda *t: torch.cat(t), *parts), device or self.device
        )
        return InternalBatch((inputs, targets, weights * (self.num_data / _positive(float(weights.sum())))))

    def sweep(self) -> Iterator[InternalBatch]:
        """All data as the loader gives them; before the first sweep they are counted, where their number is not certain."""
        if self._swept is None:
            self._swept = self._certain() or _positive(sum(float(weights.sum()) for _, _, weights in self._parts()))
        for inputs, targets, weights in self._parts():
            yield InternalBatch(batches.place((inputs, targets, weights * (self.num_data / self._swept)), self.device))

    def _certain(self) -> float | None:
        """How many examples the loader gives, where that needs no look: weights and dropped batches do."""
        plain = type(self.loader.batch_sampler) is BatchSampler and not self.loader.drop_last
        return float(len(self.loader.sampler)) if plain and not self._given else None  # type: ignore[arg-type]

    @property
    def examples(self) -> int:
        """How many examples one pass gives at the most; weights may say anything of that."""
        if self._examples is None:
            next(iter(self._parts()), None)  # now it is known whether they have weights
            return sum(len(w) for _, _, w in self._parts()) if self._weighted else math.ceil(self.num_data)
        plain = type(self.loader.batch_sampler) is BatchSampler
        return len(self.loader.sampler) if plain else self.steps_per_epoch * self.batch_size  # type: ignore[arg-type]

    def _parts(self) -> Iterator[tuple[Any, Any, Tensor]]:
        """Every batch once, one at a time; of a stream, which may never end, as many as make N."""
        with self._seeded(0, 0):
            self._set_epoch(0)
            iterator = iter(self.loader)
        seen = 0.0
        for place in itertools.count(1):
            with self._seeded(0, place):
                batch = next(iterator, None) if self._examples is not None or seen < self.num_data else None
            if batch is None:
                break
            part = self._read(batch, check=self._next < 0 and not self._checked)  # nobody has looked at them before
            seen += float(part[2].sum())
            yield part
        self._checked = True

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """Blocks of training inputs as the loader gives them."""
        with self._seeded(0, 0):
            self._set_epoch(0)  # not wherever training stopped, which a resumed run does not know
            iterator = iter(self.loader)
        for place in range(math.ceil(limit / self.batch_size)):
            with self._seeded(0, place + 1):
                batch = next(iterator, None)
            if batch is None and place == 0:
                raise ValueError(NO_BATCH)
            if batch is None:
                return
            inputs, _, _ = batches.split(batch, self.model.batch_rule)
            yield batches.as_tensors(inputs, self.model.dtype)


def _positive(total: float) -> float:
    if not total > 0:
        raise ValueError("all weights are zero, so there are no data")
    return total


class EpochOrder(Sampler):
    """A data set's order as a function of (seed, epoch)."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self.size, self.seed, ORDER, self.epoch).tolist())

    def __len__(self) -> int:
        return self.size


def _batch_sampler_size(loader: DataLoader) -> int:
    size = getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        raise ValueError(
            "the DataLoader has batch_size=None; let it make batches, or give a Dataset and fit(batch_size=...)"
        )
    return size
