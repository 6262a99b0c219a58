"""LeNet-5 (LeCun, Bottou, Bengio & Haffner, 1998), with today's ReLU and max pooling."""

from torch import Tensor, nn

from plausible.networks.activations import activation_named
from plausible.networks.sizes import positive_int


class LeNet5(nn.Module):
    """conv 6 (5 x 5), pool, conv 16 (5 x 5), pool, 120, 84, classes.

    The paper pads MNIST to 32 x 32; images smaller than that are padded by 2 inside the first convolution, so MNIST
    gives the classical 61,706 weights and CIFAR-10 62,006.

    Args:
        channels: the number of image channels.
        classes: the number of outputs.
        size: the height and width of the images.
        activation: the name of the activation.
    """

    def __init__(self, channels: int = 1, classes: int = 10, size: int = 28, *, activation: str = "relu"):
        super().__init__()
        positive_int("channels", channels)
        positive_int("classes", classes)
        padding = 2 if positive_int("size", size) < 32 else 0
        side = ((size + 2 * padding - 4) // 2 - 4) // 2
        if side < 1:
            raise ValueError(f"size must be at least 12 for two 5 x 5 convolutions and pools, got {size}; use an MLP")
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            activation_named(activation),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            activation_named(activation),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * side * side, 120),
            activation_named(activation),
            nn.Linear(120, 84),
            activation_named(activation),
            nn.Linear(84, classes),
        )
        self.config = {"channels": channels, "classes": classes, "size": size, "activation": activation}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes) for images of shape (N, channels, size, size)."""
        return self.classifier(self.features(x).flatten(-3))
