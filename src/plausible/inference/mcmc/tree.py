"""The balanced tree of a no-U-turn trajectory, grown leaf by leaf without recursion (Phan et al., 2019; Lao & Dillon).

A subtree of 2ᵈ leaves is walked in order. Leaf n closes one smaller subtree for every trailing one of n in binary, and
each of those begins at an even leaf. There is one slot for each number of ones in n >> 1, and a slot holds the last even
leaf with that many: it is overwritten only when all subtrees that begin there are closed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ones(number: Tensor, bits: int) -> Tensor:
    """How many bits of an integer are set, of the lowest `bits`."""
    return ((number.unsqueeze(-1) >> torch.arange(bits, device=number.device)) & 1).sum(-1)


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


def turns(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """Whether the ends of a stretch move against its summed momentum (Betancourt, 2017)."""
    return ((first * total).sum(-1) <= 0) | ((last * total).sum(-1) <= 0)


class Slots:
    """The open subtrees' first leaves: their momenta, the sums of momenta before them, and the momenta just before."""

    def __init__(self, momenta: Tensor, sums: Tensor, previous: Tensor):
        self.momenta, self.sums, self.previous = momenta, sums, previous

    @classmethod
    def empty(cls, momentum: Tensor, max_depth: int) -> Slots:
        """Room for the deepest subtree."""
        room = momentum.new_zeros(max(1, max_depth - 1), *momentum.shape)
        return cls(room, room.clone(), room.clone())

    def tree(self) -> dict[str, Tensor]:
        """As a dictionary."""
        return {"momenta": self.momenta, "sums": self.sums, "previous": self.previous}

    def with_leaf(self, leaf: Tensor, momentum: Tensor, total: Tensor, before: Tensor) -> Slots:
        """Put an even leaf into its slot; `total` is the sum that includes it, `before` the momentum one leaf earlier."""
        count = self.momenta.shape[0]
        slot = torch.arange(count, device=leaf.device) == ones(leaf >> 1, count)
        here = (slot & (leaf & 1 == 0)).unsqueeze(-1)
        return Slots(
            torch.where(here, momentum, self.momenta),
            torch.where(here, total - momentum, self.sums),
            torch.where(here, before, self.previous),
        )

    def turning(self, leaf: Tensor, momentum: Tensor, total: Tensor) -> Tensor:
        """Whether one of the subtrees that an odd leaf closes turns back, as a whole or where its halves meet."""
        count = self.momenta.shape[0]
        highest = ones(leaf >> 1, count)
        lowest = highest - ones(leaf ^ (leaf + 1), count + 2) + 2
        slot = torch.arange(count, device=leaf.device)
        closed = (slot >= lowest) & (slot <= highest) & (leaf & 1 == 1)
        whole = turns(self.momenta, momentum, total - self.sums)
        if count == 1:
            return (closed & whole).any(-1)
        # The second half of the subtree that begins in one slot begins in the next.
        start, middle = self.momenta[:-1], self.momenta[1:]
        left, right = self.sums[1:] - self.sums[:-1], total - self.sums[1:]
        seam = turns(start, middle, left + middle) | turns(self.previous[1:], momentum, right + self.previous[1:])
        return (closed & whole).any(-1) | (closed[:-1] & (slot[:-1] < highest) & seam).any(-1)
