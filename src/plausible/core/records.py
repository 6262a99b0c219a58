"""Kept records in memory that is taken once: the last `capacity` of them, oldest first."""

from __future__ import annotations

import torch

from ..weights import tree
from ..weights.tree import Tree


class Records:
    """A ring of equal trees."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.count = 0  # all that were ever added
        self._ring: Tree | None = None

    def add(self, record: Tree) -> None:
        """Copy a record in; the oldest makes room."""
        if self._ring is None:
            self._ring = tree.tree_map(lambda t: t.new_empty((self.capacity, *t.shape)), record)
        place = self.count % self.capacity
        tree.tree_map(lambda ring, t: ring[place].copy_(t), self._ring, record)
        self.count += 1

    @property
    def held(self) -> int:
        """How many records there are now."""
        return min(self.count, self.capacity)

    def stacked(self) -> Tree | None:
        """The records along a leading axis, oldest first."""
        if self._ring is None:
            return None
        if self.count <= self.capacity:
            return tree.tree_map(lambda t: t[: self.count], self._ring)
        first = self.count % self.capacity
        return tree.tree_map(lambda t: torch.roll(t, -first, 0), self._ring)

    def restore(self, stacked: Tree, count: int) -> None:
        """Put back what `stacked` gave."""
        held = tree.leading_axis(stacked)
        self._ring = tree.tree_map(lambda t: t.new_empty((self.capacity, *t.shape[1:])), stacked)
        self.count = count
        for i in range(held):
            place = (count - held + i) % self.capacity
            tree.tree_map(lambda ring, t, i=i, place=place: ring[place].copy_(t[i]), self._ring, stacked)
