"""Where a tensor inside a network keeps its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The examples have `axis` to themselves, or share it with positions: examples `outer`, or `inner` and running first."""

    axis: int = 0
    order: str = "own"

    def fits(self, shape: Sequence[int], examples: int, probe: Sequence[int], probes: int) -> bool:
        """Whether a tensor of this shape has as many positions for each example as the one, of `probes`, that it was found on."""
        if len(shape) != len(probe):
            return False
        return shape[self.axis] * probes == probe[self.axis] * examples

    def split(self, tensor: Tensor, examples: int) -> Tensor:
        """(N, T, rest...): examples first, then the positions that share their axis, then the other axes in order."""
        if self.order == "own":
            return tensor.movedim(self.axis, 0).unsqueeze(1)
        if self.order == "outer":
            return tensor.unflatten(self.axis, (examples, -1)).movedim((self.axis, self.axis + 1), (0, 1))
        return tensor.unflatten(self.axis, (-1, examples)).movedim((self.axis + 1, self.axis), (0, 1))

    def take(self, tensor: Tensor, begin: int, end: int, examples: int) -> Tensor:
        """The part of the tensor that belongs to examples begin to end, laid out alike."""
        if self.order == "own":
            return tensor.narrow(self.axis, begin, end - begin)
        if self.order == "outer":
            positions = tensor.shape[self.axis] // examples
            return tensor.narrow(self.axis, begin * positions, (end - begin) * positions)
        split = tensor.unflatten(self.axis, (-1, examples)).narrow(self.axis + 1, begin, end - begin)
        return split.flatten(self.axis, self.axis + 1)

    def times(self, tensor: Tensor, factors: Tensor, in_front: int = 0) -> Tensor:
        """The tensor with every example's part multiplied by its own factor; it may have further axes in front."""
        axis = self.axis + in_front
        positions = tensor.shape[axis] // factors.shape[0]
        if self.order != "own":
            rows = factors.unsqueeze(0 if self.order == "inner" else 1)
            wide = (positions, factors.shape[0]) if self.order == "inner" else (factors.shape[0], positions)
            factors = rows.expand(wide).reshape(-1)
        return tensor * factors.to(tensor.dtype).reshape(-1, *[1] * (tensor.dim() - axis - 1))

    def only(self, tensor: Tensor, example: int, examples: int, in_front: int = 0) -> Tensor:
        """The tensor with zeros in place of all other examples; it may have further axes in front."""
        axis = self.axis + in_front
        size = tensor.shape[axis]
        numbers = torch.arange(size, device=tensor.device)
        owner = numbers % examples if self.order == "inner" else numbers // (size // examples)
        return tensor * (owner == example).reshape(-1, *[1] * (tensor.dim() - axis - 1))


def find_layout(touched: Sequence[Tensor]) -> Layout | None:
    """The layout in which each example touches only its own entries.

    Args:
        touched: For each of the examples, where the tensor's gradient of that example's outputs is not zero.
    """
    examples = len(touched)
    shape = touched[0].shape
    for axis in range(len(shape)):
        if shape[axis] % examples:
            continue
        orders = ["own"] if shape[axis] == examples else ["outer", "inner"]
        for order in orders:
            layout = Layout(axis, order)
            if all(_only_its_own(layout.split(t, examples), i) for i, t in enumerate(touched)):
                return layout
    return None


def _only_its_own(split: Tensor, example: int) -> bool:
    others = torch.cat([split[:example], split[example + 1 :]])
    return not bool(others.any())
