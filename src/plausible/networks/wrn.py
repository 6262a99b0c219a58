"""Wide residual networks (Zagoruyko & Komodakis, 2016)."""

from torch import Tensor, nn

from plausible.networks.preresnet import pre_activation_trunk
from plausible.networks.sizes import positive_int, share


class WideResNet(nn.Module):
    """Three stages of pre-activation blocks, `width` times as wide as 16, 32 and 64 channels.

    WRN-16-4 has 2,748,890 weights for CIFAR-10 with batch norm, WRN-28-10 36,479,194.

    Args:
        depth: the number of convolutions on the longest way, and the linear layer: 4 + 6 x the blocks of a stage.
        width: how many times wider than a ResNet; the stem keeps 16 channels.
        classes: the number of outputs.
        channels: the number of image channels.
        norm: "batch", "group" or "filter-response".
        dropout: the share of values dropped between the two convolutions of a block.
    """

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        classes: int = 10,
        channels: int = 3,
        norm: str = "batch",
        *,
        dropout: float = 0.0,
    ):
        super().__init__()
        if positive_int("depth", depth) < 10 or depth % 6 != 4:
            raise ValueError(f"depth must be 4 + 6 x the blocks of a stage, as in 10, 16, 22, 28 or 40, got {depth}")
        positive_int("width", width)
        positive_int("classes", classes)
        positive_int("channels", channels)
        share("dropout", dropout)
        widths = (16 * width, 32 * width, 64 * width)
        self.trunk = pre_activation_trunk(channels, 16, widths, (depth - 4) // 6, norm, dropout)
        self.head = nn.Linear(64 * width, classes)
        self.config = {
            "depth": depth,
            "width": width,
            "classes": classes,
            "channels": channels,
            "norm": norm,
            "dropout": dropout,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.head(self.trunk(x).mean((-2, -1)))


def WRN16_4(classes: int = 10, channels: int = 3, norm: str = "batch", *, dropout: float = 0.0) -> WideResNet:  # noqa: N802 - it reads like its neighbours
    """The `WideResNet` of depth 16 and width 4."""
    return WideResNet(16, 4, classes, channels, norm, dropout=dropout)
