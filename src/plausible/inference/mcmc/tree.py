"""The balanced tree of a no-U-turn trajectory, grown leaf by leaf without recursion (Phan et al., 2019; Lao & Dillon).

A subtree of 2ᵈ leaves is walked in order. Leaf n closes one smaller subtree for every trailing one of n in binary, and
each of those begins at an even leaf. There is one row for each number of ones in n >> 1, and a row holds the last even
leaf with that many: it is overwritten only when all subtrees that begin there are closed. Above these rows lies one for
the tree that the subtree is added to, as if it were a subtree that began at its far end and is closed by the last leaf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def ones(number: Tensor) -> Tensor:
    """How many bits of an integer below 2³² are set: of pairs, of nibbles, of bytes, of all."""
    pairs = number - ((number >> 1) & 0x55555555)
    nibbles = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((nibbles + (nibbles >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


def highest_bit(number: Tensor) -> Tensor:
    """Which bit of a positive integer below 2³² is the highest that is set."""
    return number.to(torch.float64).log2().floor().to(torch.int64)  # exact: the next power of two is far enough


def toss(uniform: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Whether an event happens, and a uniform number for the next.

    Given the outcome, where u lies inside its part of the unit interval is uniform again and independent of it. A large tree
    tosses more often than a double has bits; by then its last ones are stirred by dividing by numbers that are no powers of
    two, and of 512 leaves each is picked as often as it should be.
    """
    probability = probability.to(uniform.dtype)
    hit = uniform < probability
    rest = torch.where(hit, uniform / probability, (uniform - probability) / (1 - probability))
    return hit, rest.clamp(0.0, 1.0 - 2.0**-53)


class Leaf(NamedTuple):
    """The next leaf of a subtree of `size` leaves and the rows that it has to do with, as doubles: exact for whole numbers.

    An even leaf begins in `row`; of an odd one that is minus the row of the leaf before it. It closes what begins in the
    rows from `lowest` on: an odd leaf up to that of the leaf before it, an even one (the only leaf of its subtree) the tree.
    """

    number: Tensor
    size: Tensor
    row: Tensor
    lowest: Tensor

    @classmethod
    def zeroth(cls, zero: Tensor) -> Leaf:
        """The only leaf of the first subtree."""
        one = torch.ones_like(zero)
        return cls(zero, one, one, zero)

    @classmethod
    def of(cls, number: Tensor, size: Tensor) -> Leaf:
        """A leaf by its number, from 0 to size − 1."""
        whole = number.to(torch.int64)
        begins = ones(whole >> 1) + 1
        lowest = begins + 1 - highest_bit(whole ^ (whole + 1))  # one row less for every trailing one
        lowest = lowest * (number + 1 < size)  # the last leaf closes the tree
        return cls(number, size, (begins * (1 - 2 * (whole & 1))).to(number.dtype), lowest.to(number.dtype))

    def next(self, growing: Tensor) -> Leaf:
        """The one after it, where the tree is growing; after the last, the first of a subtree twice as large."""
        last = growing & self.last
        return Leaf.of((self.number + growing) * ~last, self.size * (1 + last.to(self.size.dtype)))

    @property
    def first(self) -> Tensor:
        """Whether its subtree begins with it."""
        return self.number == 0

    @property
    def last(self) -> Tensor:
        """Whether its subtree ends with it."""
        return self.number + 1 == self.size

    @property
    def leapfrogs(self) -> Tensor:
        """How many leaves have grown before it, in all subtrees."""
        return self.size + self.number - 1


class Rows:
    """The tree and the open parts of its subtree: first momenta, sums of momenta before them, and momenta just before."""

    def __init__(self, momenta: Tensor, sums: Tensor, previous: Tensor):
        self.momenta, self.sums, self.previous = momenta, sums, previous

    @classmethod
    def empty(cls, momentum: Tensor, max_depth: int) -> Rows:
        """Room for the tree and for the deepest subtree."""
        room = momentum.new_zeros(max(2, max_depth), *momentum.shape)
        return cls(room, room, room)

    def tree(self) -> dict[str, Tensor]:
        """As a dictionary."""
        return {"momenta": self.momenta, "sums": self.sums, "previous": self.previous}

    def with_tree(self, first: Tensor, far: Tensor, added: Tensor) -> Rows:
        """Where a subtree begins, the tree with what the last one added, seen from the end `far` from the new one."""
        here = ((torch.arange(len(self.momenta), device=first.device) == 0) & first).unsqueeze(-1)
        return Rows(
            torch.where(here, far, self.momenta), torch.where(here, self.sums - added, self.sums), self.previous
        )

    def with_leaf(self, leaf: Leaf, momentum: Tensor, total: Tensor, before: Tensor) -> Rows:
        """Put an even leaf into its row; `total` is the sum that includes it, `before` the momentum one leaf earlier."""
        here = (torch.arange(len(self.momenta), device=total.device) == leaf.row).unsqueeze(-1)
        return Rows(
            torch.where(here, momentum, self.momenta),
            torch.where(here, total - momentum, self.sums),
            torch.where(here, before, self.previous),
        )

    def turning(self, leaf: Leaf, momentum: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Whether what a leaf closes turns back, as a whole or where its halves meet: a part of the subtree; the tree.

        A stretch turns back where an end moves against its summed momentum (Betancourt, 2017); a full subtree closes the tree.
        """
        row = torch.arange(len(self.momenta), device=total.device)
        stretch = total - self.sums
        # The second half of what begins in one row begins in the next; a single leaf has no halves.
        middle, last, sums = (rows.roll(-1, 0) for rows in (self.momenta, self.previous, self.sums))
        left, right = sums - self.sums + middle, total - sums + last
        whole = _against(self.momenta, stretch) | _against(momentum, stretch)
        seam = _against(self.momenta, left) | _against(middle, left) | _against(last, right) | _against(momentum, right)
        begins = leaf.row.abs()  # where the last even leaf does
        closed = (row >= leaf.lowest) & (row < begins + (leaf.row < 0))
        back = closed & (whole | ((row < begins) & seam))
        return back[1:].any(-1), back[0]


def _against(momentum: Tensor, stretch: Tensor) -> Tensor:
    return (momentum * stretch).sum(-1) <= 0
