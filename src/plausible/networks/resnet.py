"""Residual networks for small images (He, Zhang, Ren & Sun, 2016).

Both have a 3 x 3 stem without pooling, basic blocks, and projection shortcuts where the shape changes: a 1 x 1
convolution and a norm, the paper's option B.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from plausible.networks.activations import activation_named
from plausible.networks.memory import channels_last
from plausible.networks.norms import ThresholdedLinear, norm_named
from plausible.networks.sizes import positive_int

RESNET_ACTIVATIONS = ("relu", "swish")


def _activation(name: str, norm: str, channels: int) -> nn.Module:
    if name not in RESNET_ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(RESNET_ACTIVATIONS)}, got {name!r}")
    # Filter-response norm comes with a learned threshold in place of ReLU's zero; swish needs none.
    if norm == "filter-response" and name == "relu":
        return ThresholdedLinear(channels)
    return activation_named(name)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; an activation after the first and after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, activation: str, zero_init_last: bool):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm_named(norm, outputs),
            _activation(activation, norm, outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm_named(norm, outputs, starts_at_zero=zero_init_last),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm_named(norm, outputs))
        self.activation = _activation(activation, norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


def _trunk(
    channels: int, widths: Sequence[int], blocks: int, norm: str, activation: str, zero_init_last: bool
) -> nn.Sequential:
    """Stem and stages; every stage but the first halves the image."""
    stem = nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        norm_named(norm, widths[0]),
        _activation(activation, norm, widths[0]),
    )
    trunk: list[nn.Module] = [stem]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            trunk.append(BasicBlock(inputs, width, stride, norm, activation, zero_init_last))
            inputs = width
    return nn.Sequential(*trunk)


class ResNet18(nn.Module):
    """Four stages of two blocks, 64 to 512 channels: 11,173,962 weights for CIFAR-10 with batch norm.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        norm: "batch", "group" or "filter-response".
        activation: "relu" or "swish"; with filter-response norm "relu" means its thresholded linear unit.
        zero_init_last: start the last norm of each block at zero, so that each block starts as its shortcut.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        norm: str = "batch",
        *,
        activation: str = "relu",
        zero_init_last: bool = False,
    ):
        super().__init__()
        positive_int("classes", classes)
        positive_int("channels", channels)
        self.trunk = _trunk(channels, (64, 128, 256, 512), 2, norm, activation, zero_init_last)
        self.head = nn.Linear(512, classes)
        self.config = {
            "classes": classes,
            "channels": channels,
            "norm": norm,
            "activation": activation,
            "zero_init_last": zero_init_last,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.head(self.trunk(channels_last(x)).mean((-2, -1)))


class ResNet20(nn.Module):
    """Three stages of three blocks, 16 to 64 channels: 272,474 weights for CIFAR-10 with batch norm.

    The paper's own CIFAR network pads with zeros in place of projections (option A) and has 269,722.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        norm: "batch", "group" or "filter-response".
        activation: "relu" or "swish"; with filter-response norm "relu" means its thresholded linear unit.
        width: the channels of the first stage; the others have two and four times as many.
        zero_init_last: start the last norm of each block at zero, so that each block starts as its shortcut.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        norm: str = "batch",
        *,
        activation: str = "relu",
        width: int = 16,
        zero_init_last: bool = False,
    ):
        super().__init__()
        positive_int("classes", classes)
        positive_int("channels", channels)
        positive_int("width", width)
        self.trunk = _trunk(channels, (width, 2 * width, 4 * width), 3, norm, activation, zero_init_last)
        self.head = nn.Linear(4 * width, classes)
        self.config = {
            "classes": classes,
            "channels": channels,
            "norm": norm,
            "activation": activation,
            "width": width,
            "zero_init_last": zero_init_last,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.head(self.trunk(channels_last(x)).mean((-2, -1)))
