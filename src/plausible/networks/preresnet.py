"""Residual networks with pre-activation (He, Zhang, Ren & Sun, 2016, "Identity mappings")."""

from collections.abc import Sequence

from torch import Tensor, nn

from plausible.networks.norms import norm_named
from plausible.networks.sizes import positive_int


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each of two 3 x 3 convolutions; nothing stands after the sum.

    Where the shape changes, the shortcut is a 1 x 1 convolution of what the first norm and ReLU made; else it is x.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, dropout: float = 0.0):
        super().__init__()
        self.activated = nn.Sequential(norm_named(norm, inputs), nn.ReLU())
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm_named(norm, outputs),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        changes = stride > 1 or inputs != outputs
        self.projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activated(x)
        shortcut = x if self.projection is None else self.projection(activated)
        return shortcut + self.residual(activated)


def pre_activation_trunk(
    channels: int, stem: int, widths: Sequence[int], blocks: int, norm: str, dropout: float = 0.0
) -> nn.Sequential:
    """A 3 x 3 stem, stages of which every one but the first halves the image, and a last norm and ReLU."""
    trunk: list[nn.Module] = [nn.Conv2d(channels, stem, 3, padding=1, bias=False)]
    inputs = stem
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            trunk.append(PreActivationBlock(inputs, width, stride, norm, dropout))
            inputs = width
    return nn.Sequential(*trunk, norm_named(norm, inputs), nn.ReLU())


class PreResNet20(nn.Module):
    """Three stages of three pre-activation blocks, 16 to 64 channels: 272,282 weights for CIFAR-10 with batch norm.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        norm: "batch", "group" or "filter-response".
        width: the channels of the first stage; the others have two and four times as many.
    """

    def __init__(self, classes: int = 10, channels: int = 3, norm: str = "batch", *, width: int = 16):
        super().__init__()
        positive_int("classes", classes)
        positive_int("channels", channels)
        positive_int("width", width)
        self.trunk = pre_activation_trunk(channels, width, (width, 2 * width, 4 * width), 3, norm)
        self.head = nn.Linear(4 * width, classes)
        self.config = {"classes": classes, "channels": channels, "norm": norm, "width": width}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.head(self.trunk(x).mean((-2, -1)))
