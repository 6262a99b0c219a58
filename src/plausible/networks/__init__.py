"""Networks used in the literature, each an ordinary module that remembers its own configuration.

A posterior file names one of these by its entry in `registry` and its `config`, never by an import path.
"""

from torch import nn

from plausible.networks.alexnet import AlexNet
from plausible.networks.dsn import DSN
from plausible.networks.lenet import LeNet5
from plausible.networks.mlp import MLP
from plausible.networks.nin import NIN
from plausible.networks.preresnet import PreResNet20
from plausible.networks.resnet import ResNet18, ResNet20
from plausible.networks.segnet import SegNet
from plausible.networks.vgg import VGG16
from plausible.networks.wrn import WRN16_4, WideResNet

registry: dict[str, type[nn.Module]] = {
    "MLP": MLP,
    "LeNet5": LeNet5,
    "AlexNet": AlexNet,
    "NIN": NIN,
    "DSN": DSN,
    "VGG16": VGG16,
    "ResNet18": ResNet18,
    "ResNet20": ResNet20,
    "PreResNet20": PreResNet20,
    "WideResNet": WideResNet,
    "SegNet": SegNet,
}


def build(name: str, config: dict) -> nn.Module:
    """The network of this name and configuration, freshly initialised."""
    if name not in registry:
        raise ValueError(f"network must be one of {', '.join(registry)}, got {name!r}; pass the network itself instead")
    return registry[name](**config)


__all__ = [
    "DSN",
    "MLP",
    "NIN",
    "VGG16",
    "WRN16_4",
    "AlexNet",
    "LeNet5",
    "PreResNet20",
    "ResNet18",
    "ResNet20",
    "SegNet",
    "WideResNet",
    "build",
    "registry",
]
