"""Where batches come from. Inside, a batch is (inputs, targets, weights) whose weights sum to N.

A ragged last batch is filled up with further examples of weight zero, so that every batch has one shape (and norm
layers see real data). Which examples come when is a function of (seed, epoch) alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset, default_collate

from ..weights.rng import forked, permutation
from . import batch as batches
from .model import BayesianModel, InternalBatch
from .target import Target

SWEPT = 1024  # examples at a time of a sweep on a GPU
ORDER, DRAWS = 0x6F72646572, 0x6C6F61646572  # streams of a run's seed


class Source(ABC):
    """Batches by step number."""

    num_data: float
    batch_size: int
    steps_per_epoch: int

    @abstractmethod
    def batch(self, step: int) -> InternalBatch | None:
        """The batch of a step, on the device."""

    @abstractmethod
    def full(self, device: torch.device | None = None) -> InternalBatch | None:
        """All data as one batch, on the run's device unless told."""

    @abstractmethod
    def sweep(self) -> Iterator[InternalBatch]:
        """All data once, in batches whose weights sum to N over the whole sweep; without augmentation."""

    @abstractmethod
    def some_inputs(self, limit: int) -> Iterator[Any]:
        """Blocks of training inputs, `limit` examples in all at the most."""


class Nothing(Source):
    """No data: a `LogDensity` is its own."""

    num_data, batch_size, steps_per_epoch = 1.0, 1, 1

    def batch(self, step: int) -> None:
        """There is none."""
        return None

    def full(self, device: torch.device | None = None) -> None:
        """There is none."""
        return None

    def sweep(self) -> Iterator[InternalBatch]:
        """There is nothing to sweep."""
        return iter(())

    def some_inputs(self, limit: int) -> Iterator[Any]:
        """There are none."""
        return iter(())


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
        self.steps_per_epoch = max(1, len(loader) if sized else math.ceil(self.num_data / self.batch_size))
        self._next, self._iterator = -1, iter(())
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
        return self._prepared(self._draw(epoch, place), check=epoch == 0)

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
        with self._seeded(epoch, place + 1):
            try:
                return next(self._iterator)
            except StopIteration:  # an iterable that ends early starts again
                self._iterator = iter(self.loader)
                try:
                    return next(self._iterator)
                except StopIteration:
                    raise ValueError("the data loader gives no batch at all") from None

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
        own = torch.ones(size, dtype=self.model.dtype) if weights is None else batches.as_tensors(weights)
        return inputs, targets, own.to(self.model.dtype)

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
        return InternalBatch((inputs, targets, weights * (self.num_data / weights.sum())))

    def sweep(self) -> Iterator[InternalBatch]:
        """All data as the loader gives them; before the first sweep they are counted, where their number is not certain."""
        if self._swept is None:
            self._swept = self._certain() or sum(float(weights.sum()) for _, _, weights in self._parts())
        for inputs, targets, weights in self._parts():
            yield InternalBatch(batches.place((inputs, targets, weights * (self.num_data / self._swept)), self.device))

    def _certain(self) -> float | None:
        """How many examples the loader gives, where that needs no look: weights and dropped batches do."""
        plain = type(self.loader.batch_sampler) is torch.utils.data.BatchSampler and not self.loader.drop_last
        return float(len(self.loader.sampler)) if plain and not self._given else None  # type: ignore[arg-type]

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
            if batch is None:
                return
            inputs, _, _ = batches.split(batch, self.model.batch_rule)
            yield batches.as_tensors(inputs, self.model.dtype)


class _EpochOrder(torch.utils.data.Sampler):
    """A data set's order as a function of (seed, epoch)."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self.size, self.seed, ORDER, self.epoch).tolist())

    def __len__(self) -> int:
        return self.size


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
        sampler = None if isinstance(data, IterableDataset) else _EpochOrder(len(data), seed)  # type: ignore[arg-type]
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
        weights = batches.as_tensors(weights, model.dtype).to(model.dtype)
        if weights.shape != (size,) or bool((weights < 0).any()) or not bool(torch.isfinite(weights).all()):
            raise ValueError(f"weights must be {size} finite, non-negative numbers, got shape {tuple(weights.shape)}")
        if not bool(weights.sum() > 0):
            raise ValueError("all weights are zero, so there are no data")
    check_targets(model, inputs, targets, device)
    return Resident(inputs, targets, weights, batch_size, seed, device, num_data, model.dtype)


def check_targets(model: BayesianModel, inputs: Any, targets: Any, device: torch.device) -> None:
    """Run two examples through the network and let the likelihood judge all targets against their outputs."""
    check = getattr(model.likelihood, "check", None)
    params = {k: v.to(device) for k, v in model.start.items()}
    few = batches.place(batches.rows(inputs, slice(0, 2)), device)
    # A network that draws leaves no trace.
    with torch.no_grad(), forked(0x636865636B, devices=[device]), batches.shapes_named(inputs):
        out = model.bound(training=False).outputs(params, few)
    size = batches.length(inputs)
    if out.dim() == 0 or out.shape[0] != min(2, size):
        raise ValueError(f"the network must keep the examples' axis first, got outputs of shape {tuple(out.shape)}")
    if callable(check):
        check(out[:1].expand(size, *out.shape[1:]), targets.to(device))


def _batch_sampler_size(loader: DataLoader) -> int:
    size = getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        raise ValueError(
            "the DataLoader has batch_size=None; let it make batches, or give a Dataset and fit(batch_size=...)"
        )
    return size
