"""Activations by name, so that a network's configuration is plain data."""

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "swish": nn.SiLU,  # the same function under its other name
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
}


def activation_named(name: str) -> nn.Module:
    """A new activation module; a ValueError lists the names there are."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()
