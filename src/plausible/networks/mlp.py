"""A fully connected network."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from plausible.networks.activations import activation_named
from plausible.networks.sizes import positive_int


class MLP(nn.Module):
    """Linear layers with an activation between them and none at the end.

    Args:
        inputs: the number of inputs, or their shape, as in (1, 8, 8) for images.
        hidden: the width of each hidden layer; empty for a linear model.
        outputs: the number of outputs.
        activation: the name of the activation.
    """

    def __init__(
        self, inputs: int | Sequence[int], hidden: Sequence[int] = (50,), outputs: int = 1, activation: str = "relu"
    ):
        super().__init__()
        shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        widths = [
            math.prod(positive_int("inputs", size) for size in shape),
            *(positive_int("hidden", width) for width in hidden),
            positive_int("outputs", outputs),
        ]
        layers: list[nn.Module] = []
        for width, next_width in pairwise(widths):
            layers += [nn.Linear(width, next_width), activation_named(activation)]
        self.layers = nn.Sequential(*layers[:-1])
        self.input_axes = len(shape)
        self.config = {
            "inputs": inputs if isinstance(inputs, int) else list(shape),
            "hidden": list(hidden),
            "outputs": outputs,
            "activation": activation,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of shape (N, outputs); images are flattened."""
        if self.input_axes > 1:
            x = x.flatten(-self.input_axes)
        elif x.dim() > 2:
            x = x.flatten(1)
        return self.layers(x)
