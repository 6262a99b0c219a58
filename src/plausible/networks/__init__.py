"""Networks used in the literature, each an ordinary module that remembers its own configuration.

A posterior file names one of these by its entry in `registry` and its `config`, never by an import path.
"""

from torch import nn

from plausible.networks.lenet import LeNet5
from plausible.networks.mlp import MLP
from plausible.networks.resnet import ResNet18, ResNet20

registry: dict[str, type[nn.Module]] = {
    "MLP": MLP,
    "LeNet5": LeNet5,
    "ResNet18": ResNet18,
    "ResNet20": ResNet20,
}


def build(name: str, config: dict) -> nn.Module:
    """The network of this name and configuration, freshly initialised."""
    if name not in registry:
        raise ValueError(f"network must be one of {', '.join(registry)}, got {name!r}; pass the network itself instead")
    return registry[name](**config)


__all__ = ["MLP", "LeNet5", "ResNet18", "ResNet20", "build", "registry"]
