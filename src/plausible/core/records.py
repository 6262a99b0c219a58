"""Kept records in room that is taken once: the last `capacity` of them, oldest first.

They are in memory while all runs' together take no more than a budget, and in mapped files beyond it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..weights import tree
from ..weights.tree import Tree
from .files.mapped import MappedFolder

log = logging.getLogger("plausible")

DTYPES = {str(t): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool)}
IN_MEMORY = 4 * 1024**3  # bytes of kept records, of all modes together


class Records:
    """A ring of equal trees.

    Args:
        capacity: How many are held.
        folder: Where they go if they are too many for memory; None keeps them there in any case.
        lane: Which of the run's rings this is.
        lanes: How many rings there are.
        modes_inside: Whether a record is of several modes, along its leading axis.
    """

    def __init__(
        self,
        capacity: int,
        folder: MappedFolder | None = None,
        *,
        lane: int = 0,
        lanes: int = 1,
        modes_inside: bool = False,
    ):
        self.capacity, self.folder, self.lane, self.lanes = capacity, folder, lane, lanes
        self.modes_inside = modes_inside
        self.count = 0  # all that were ever added
        self.on_disk = False
        self._ring: Tree | None = None
        self._digest = hashlib.sha256()  # of all records on the disk, in the order in which they came

    def add(self, record: Tree) -> None:
        """Copy a record in; the oldest makes room."""
        if self._ring is None:
            self._ring = self._made(record)
        place = self.count % self.capacity
        tree.tree_map(lambda ring, t: ring[place].copy_(t), self._ring, record)
        if self.on_disk:
            self._take_into_digest(place)
        self.count += 1

    def _made(self, record: Tree) -> Tree:
        needed = tree.num_bytes(record) * self.capacity * self.lanes
        if self.folder is None or needed <= IN_MEMORY:
            return tree.tree_map(lambda t: t.new_empty((self.capacity, *t.shape)), record)
        self.on_disk = True
        ring = self._mapped([(path, tuple(t.shape), t.dtype) for path, t in _named(record)], self.folder.create)
        if self.lane == 0:
            where = self.folder.path if self.folder.checkpoint else "temporary files"
            log.warning("the draws take %.1f GiB, so they are kept in %s", needed / 2**30, where)
        return ring

    def _mapped(self, forms: list[tuple[list[str], tuple[int, ...], torch.dtype]], get: Callable[..., Tensor]) -> Tree:
        """A ring in files. Those of one mode lie one behind another, so that a mode's draws are one piece of a file."""
        ring: Tree = {}
        for i, ((*parents, name), shape, dtype) in enumerate(forms):
            room = (shape[0], self.capacity, *shape[1:]) if self.modes_inside else (self.capacity, *shape)
            found = get(self._file(i), room, dtype)
            node = ring
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = found.movedim(0, 1) if self.modes_inside else found
        return ring

    def _file(self, index: int) -> str:
        return f"{self.lane}-{index}.bin"

    def _take_into_digest(self, place: int) -> None:
        for _, t in _named(self._ring):
            self._digest.update(t[place].contiguous().reshape(-1).view(torch.uint8).numpy().data)

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

    def of_mode(self, mode: int) -> Tree:
        """The records of one mode; in memory that is its own, unless they are in a file."""
        if not self.modes_inside:
            return self.stacked()
        return tree.tree_map(lambda t: t[:, mode] if self.on_disk else t[:, mode].clone(), self.stacked())

    # --- checkpoints ---

    def noted(self) -> int | dict[str, Any]:
        """What a checkpoint must know beside the records, which it holds itself unless they are in files."""
        if not self.on_disk:
            return self.count
        assert self.folder is not None and self.folder.path is not None
        forms = []
        for i, (path, t) in enumerate(_named(self._ring)):
            self.folder.sync(self._file(i))
            forms.append([path, list(t.shape[1:]), str(t.dtype)])
        where = {"folder": self.folder.path.name, "forms": forms, "sha256": self._digest.hexdigest()}
        return {"count": self.count, **where}

    def restore(self, noted: int | dict[str, Any], stacked: Tree | None) -> None:
        """Put back what `stacked` and `noted` gave."""
        if not isinstance(noted, int):
            self._reopen(noted)
        elif stacked is not None:
            held = tree.leading_axis(stacked)
            self._ring = tree.tree_map(lambda t: t.new_empty((self.capacity, *t.shape[1:])), stacked)
            self.count = noted
            for i in range(held):
                place = (noted - held + i) % self.capacity
                tree.tree_map(lambda ring, t, i=i, place=place: ring[place].copy_(t[i]), self._ring, stacked)

    def _reopen(self, noted: dict[str, Any]) -> None:
        assert self.folder is not None and self.folder.checkpoint is not None
        self.folder.path = self.folder.checkpoint.parent / Path(noted["folder"]).name
        forms = [(path, tuple(shape), DTYPES[name]) for path, shape, name in noted["forms"]]
        self._ring, self.on_disk = self._mapped(forms, self.folder.open), True
        for place in range(noted["count"]):
            self._take_into_digest(place)
        if self._digest.hexdigest() != noted["sha256"]:
            raise ValueError(f"the draws in {self.folder.path} are not those of the checkpoint; start over")
        self.count = noted["count"]


def _named(record: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Tensor]]:
    """Every tensor with the names that lead to it, in the record's own order."""
    if isinstance(record, Mapping):
        for name, value in record.items():
            yield from _named(value, (*path, name))
    else:
        yield list(path), record
