"""AlexNet (Krizhevsky, Sutskever & Hinton, 2012), cut down to 32 x 32 images as in Osawa et al. (2019)."""

from torch import Tensor, nn

from plausible.networks.memory import channels_last
from plausible.networks.sizes import positive_int, share


class AlexNet(nn.Module):
    """Five convolutions, three pools and one linear layer: 2,472,266 weights for CIFAR-10.

    conv 64 (11 x 11, stride 4, padding 5), pool, conv 192 (5 x 5), pool, conv 384, conv 256, conv 256 (3 x 3), pool,
    linear. ReLU, no norm. The one linear layer takes the single pixel that 32 x 32 images end in.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        dropout: the share of values dropped after each convolution, before its ReLU, as for MC dropout there.
    """

    def __init__(self, classes: int = 10, channels: int = 3, *, dropout: float = 0.0):
        super().__init__()
        positive_int("classes", classes)
        positive_int("channels", channels)
        share("dropout", dropout)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 11, stride=4, padding=5),
            nn.Dropout(dropout),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.Dropout(dropout),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.Dropout(dropout),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.Dropout(dropout),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.Dropout(dropout),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(256, classes)
        self.config = {"classes": classes, "channels": channels, "dropout": dropout}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, 32, 32)."""
        if x.shape[-2:] != (32, 32):
            raise ValueError(f"images must be 32 x 32, got {x.shape[-2]} x {x.shape[-1]}; resize or pad them")
        return self.head(self.features(channels_last(x)).flatten(-3))
