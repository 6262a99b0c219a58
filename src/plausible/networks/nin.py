"""Network in network (Lin, Chen & Yan, 2014)."""

from collections.abc import Sequence

from torch import Tensor, nn

from plausible.networks.convolutions import HeConv2d
from plausible.networks.sizes import positive_int, share


def mlpconv(inputs: int, widths: Sequence[int], kernel: int) -> list[nn.Module]:
    """A convolution and then an MLP at every pixel, which is a chain of 1 x 1 convolutions; ReLU after each."""
    layers: list[nn.Module] = []
    for width, size in zip(widths, [kernel] + [1] * (len(widths) - 1), strict=True):
        layers += [HeConv2d(inputs, width, size, padding=size // 2), nn.ReLU()]
        inputs = width
    return layers


def three_blocks(classes: int, channels: int, dropout: float, second_pool: type[nn.Module]) -> list[nn.Module]:
    """192-160-96 behind 5 x 5, max pool; 192-192-192 behind 5 x 5, the second pool; 192-192-classes behind 3 x 3.

    Dropout stands behind each pool.
    """
    positive_int("classes", classes)
    positive_int("channels", channels)
    share("dropout", dropout)
    return [
        *mlpconv(channels, (192, 160, 96), 5), nn.MaxPool2d(3, stride=2, ceil_mode=True), nn.Dropout(dropout),
        *mlpconv(96, (192, 192, 192), 5), second_pool(3, stride=2, ceil_mode=True), nn.Dropout(dropout),
        *mlpconv(192, (192, 192, classes), 3),
    ]  # fmt: skip


class NIN(nn.Module):
    """Three blocks of mlpconv, dropout between them, and the mean of each class's map: 966,986 weights for CIFAR-10.

    As published for CIFAR-10: 192-160-96 behind 5 x 5, max pool; 192-192-192 behind 5 x 5, average pool; then
    192-192-classes behind 3 x 3. The pools are 3 x 3 with stride 2. Every convolution is followed by ReLU, the last one
    too, so logits are never negative. Weights start as in `HeConv2d`, where the authors draw all with deviation 0.05.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        dropout: the share of values dropped between blocks.
    """

    def __init__(self, classes: int = 10, channels: int = 3, *, dropout: float = 0.5):
        super().__init__()
        self.features = nn.Sequential(*three_blocks(classes, channels, dropout, nn.AvgPool2d))
        self.config = {"classes": classes, "channels": channels, "dropout": dropout}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.features(x).mean((-2, -1))
