"""Numbers that users give: Python's own, so that a state of them is data alone, finite, and of the right kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..core.errors import require_finite


def number(name: str, value: Any) -> Any:
    """A finite Python number, also of one of numpy or torch."""
    own = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    require_finite(name, own)
    return own


def whole(name: str, value: Any) -> int:
    """A whole number."""
    own = number(name, value)
    if own != int(own):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(own)


def betas_in_range(value: Any) -> tuple[float, float]:
    """Two numbers in [0, 1)."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"betas must be two numbers in [0, 1), got {value!r}")
    try:
        first, second = (number("betas", b) for b in value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"betas must be two numbers in [0, 1), got {value!r}") from None
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ValueError(f"betas must be in [0, 1), got {value!r}")
    return first, second


def require_network(network: Any) -> None:
    """Raise unless it is a network."""
    if isinstance(network, nn.Module):
        return
    listed = not isinstance(network, str | Mapping) and hasattr(network, "__iter__")
    if listed:  # the habit of `torch.optim`
        raise TypeError(
            "the first argument is the network itself and not its parameters: its passes are watched, and its weights have "
            f"names; got {type(network).__name__}, give network instead of network.parameters()"
        )
    raise TypeError(f"the first argument is the network, a torch.nn.Module, got {type(network).__name__}")
