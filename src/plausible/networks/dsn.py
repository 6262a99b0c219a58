"""The network of deeply supervised nets (Lee, Xie, Gallagher, Zhang & Tu, 2015)."""

from torch import Tensor, nn

from plausible.networks.nin import mlpconv
from plausible.networks.sizes import positive_int, share


class DSN(nn.Module):
    """Network in network with two max pools and no ReLU on the logits: 966,986 weights for CIFAR-10.

    Left out is the deep supervision itself: a linear classifier on each block's first convolution, whose squared hinge
    losses are added while training and thrown away afterwards, and the squared hinge loss on the logits. Here the
    likelihood judges the final logits alone, so that the network has one well-defined posterior.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        dropout: the share of values dropped between blocks.
    """

    def __init__(self, classes: int = 10, channels: int = 3, *, dropout: float = 0.5):
        super().__init__()
        positive_int("classes", classes)
        positive_int("channels", channels)
        share("dropout", dropout)
        self.features = nn.Sequential(
            *mlpconv(channels, (192, 160, 96), 5),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Dropout(dropout),
            *mlpconv(96, (192, 192, 192), 5),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Dropout(dropout),
            *mlpconv(192, (192, 192, classes), 3)[:-1],
        )
        self.config = {"classes": classes, "channels": channels, "dropout": dropout}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.features(x).mean((-2, -1))
