"""Where batches come from, and what is asked of data before they are taken.

Inside, a batch is (inputs, targets, weights) whose weights sum to N. A ragged last batch is filled up with further examples of
weight zero, so that every batch has one shape (and norm layers see real data). Which examples come when is a function of
(seed, epoch) alone.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch

from ..weights.rng import forked
from . import batch as batches
from .model import BayesianModel, InternalBatch

log = logging.getLogger("plausible")

ORDER = 0x6F72646572  # the stream of a run's seed that shuffles


class Source(ABC):
    """Batches by step number."""

    num_data: float
    batch_size: int
    steps_per_epoch: int

    @abstractmethod
    def batch(self, step: int) -> InternalBatch | None:
        """The batch of a step, on the device."""

    def look(self, step: int, limit: int) -> InternalBatch | None:
        """The batch of a step that begins an epoch and, where data are at hand, further ones, `limit` examples at the most."""
        return self.batch(step)

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


def warn_of_few(num_data: float, batch_size: int) -> None:
    """Say it where a batch has more examples than there are said to be."""
    if num_data < batch_size:
        log.warning(
            "num_data=%g is less than the %d examples of a batch: it is the number of training examples, not of batches, and "
            "the posterior is of a data set of this size", num_data, batch_size,
        )  # fmt: skip


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
