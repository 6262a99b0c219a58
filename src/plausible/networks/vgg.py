"""VGG-16 (Simonyan & Zisserman, 2015) for 32 x 32 images, as in the papers on SWA and SWAG."""

from torch import Tensor, nn

from plausible.networks.convolutions import HeConv2d
from plausible.networks.norms import norm_named
from plausible.networks.sizes import positive_int, share

STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))  # channels of each 3 x 3 convolution, in units of `width`


class VGG16(nn.Module):
    """Thirteen 3 x 3 convolutions, a pool after each stage, three linear layers: 15,245,130 weights for CIFAR-10.

    The linear layers are 512 wide, where those for ImageNet have 4,096.

    Args:
        classes: the number of outputs.
        channels: the number of image channels.
        norm: None, "batch", "group" or "filter-response": what follows each convolution.
        dropout: the share of values dropped before each hidden linear layer.
        width: the channels of the first stage; the linear layers are eight times as wide.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        norm: str | None = None,
        *,
        dropout: float = 0.5,
        width: int = 64,
    ):
        super().__init__()
        positive_int("classes", classes)
        positive_int("width", width)
        share("dropout", dropout)
        layers: list[nn.Module] = []
        inputs = positive_int("channels", channels)
        for stage in STAGES:
            for outputs in (width * multiple for multiple in stage):
                layers.append(HeConv2d(inputs, outputs, 3, padding=1))
                if norm is not None:
                    layers.append(norm_named(norm, outputs))
                layers.append(nn.ReLU())
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(inputs, inputs),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(inputs, inputs),
            nn.ReLU(),
            nn.Linear(inputs, classes),
        )
        self.config = {"classes": classes, "channels": channels, "norm": norm, "dropout": dropout, "width": width}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, 32, 32)."""
        if x.shape[-2:] != (32, 32):
            raise ValueError(f"images must be 32 x 32, got {x.shape[-2]} x {x.shape[-1]}; resize or pad them")
        return self.classifier(self.features(x).flatten(-3))
