"""All data in chunks, for methods that see all of them at a time where one pass would take too much memory.

A log likelihood is a sum over examples, and so is its slope: `Target.slope` and `Target.value` take them chunk by chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .batch import place


class Chunks(ABC):
    """Batches on the device whose weights sum to N over all of them, as often as somebody asks."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """One batch after another, in an order that never changes."""


class HeldChunks(Chunks):
    """Chunks of tensors that are held, on the device or on the host; a node for `vmap` and for trees."""

    def __init__(self, batches: list[Any], device: torch.device):
        self.batches, self.device = batches, device

    def __iter__(self) -> Iterator[Any]:
        """Each is moved to the device when its turn comes, and no sooner."""
        for batch in self.batches:
            yield pytree.tree_map(lambda t: t if t is None else place(t, self.device), batch)


class ReadChunks(Chunks):
    """Chunks that are read again for every pass, since the data are too many to be held.

    Args:
        sweep: All data once, in batches whose weights sum to N.
        size: How many examples one chunk has at the most.
    """

    def __init__(self, sweep: Callable[[], Iterator[Any]], size: int):
        self.sweep, self.size = sweep, size

    def __iter__(self) -> Iterator[Any]:
        """The sweep's batches, the large ones in parts."""
        for batch in self.sweep():
            yield from parts(batch, self.size)


def parts(batch: Any, size: int, axis: int = 0) -> list[Any]:
    """A batch as several with `size` examples each, the last with what is left; a missing weight stays missing."""
    total = pytree.tree_leaves(batch)[0].shape[axis]

    def part(begin: int) -> Any:
        length = min(size, total - begin)
        return pytree.tree_map(lambda t: t if t is None else t.narrow(axis, begin, length), batch)

    return [part(begin) for begin in range(0, total, size)]


pytree.register_pytree_node(
    HeldChunks,
    lambda chunks: (list(chunks.batches), chunks.device),
    lambda batches, device: HeldChunks(list(batches), device),
    serialized_type_name="plausible.Chunks",
)
