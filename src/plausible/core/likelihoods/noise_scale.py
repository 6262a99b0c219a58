"""A noise scale as a user may give it: a number, a hyperprior, or ``"learn"``."""

from typing import Any

import torch
from torch import Tensor

from plausible.core.hyperpriors import LogFlat
from plausible.core.unknowns import require_scale


def settle(likelihood: Any, name: str) -> None:
    """Check one field of a frozen likelihood and turn ``"learn"`` into the flat prior on the log scale it means."""
    value = getattr(likelihood, name)
    if isinstance(value, str):
        if value != "learn":
            raise ValueError(f'{name} must be a positive number, a tensor, a hyperprior or "learn", got {value!r}')
        object.__setattr__(likelihood, name, LogFlat())
    else:
        require_scale(name, value)


def tensor_like(outputs: Tensor, value: float | Tensor) -> Tensor:
    """``value`` in the dtype and on the device of ``outputs``, so that a distribution keeps both."""
    return torch.as_tensor(value, dtype=outputs.dtype, device=outputs.device)
