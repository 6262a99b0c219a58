"""A convolution that starts at the scale deep networks without norms need, and pooling that can be undone."""

import math

import torch
from torch import Tensor, nn


class HeConv2d(nn.Conv2d):
    """A convolution with weights from N(0, 2 / (outputs x kernel area)) and no bias at first (He et al., 2015).

    Torch's own start shrinks the signal by about 2.4 at every ReLU layer, so that sixteen of them without a norm hardly
    learn. It is a class, not a loop over a finished network, so that `reset_parameters` draws from the same law.
    """

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        fan_out = self.out_channels * math.prod(self.kernel_size)
        nn.init.normal_(self.weight, std=math.sqrt(2 / fan_out))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def max_pool_with_places(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every 2 x 2 block, and where it was; blocks at the edge of an odd image are smaller."""
    return nn.functional.max_pool2d(x, 2, ceil_mode=True, return_indices=True)


def unpool(x: Tensor, places: Tensor, size: torch.Size) -> Tensor:
    """Put every value back where it came from in an image of the given height and width, with zeros elsewhere."""
    # Not torch's max_unpool2d: vmap loops over it, and on a GPU it is not deterministic. Blocks do not overlap, so no
    # two values share a place.
    height, width = size
    empty = x.new_zeros(*x.shape[:-2], height * width)
    return empty.scatter(-1, places.flatten(-2), x.flatten(-2)).unflatten(-1, (height, width))
