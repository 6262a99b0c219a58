"""The network of deeply supervised nets (Lee, Xie, Gallagher, Zhang & Tu, 2015)."""

from torch import Tensor, nn

from plausible.networks.nin import three_blocks


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
        self.features = nn.Sequential(*three_blocks(classes, channels, dropout, nn.MaxPool2d)[:-1])
        self.config = {"classes": classes, "channels": channels, "dropout": dropout}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, height, width)."""
        return self.features(x).mean((-2, -1))
