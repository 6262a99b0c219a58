"""In what precision plans are made and checked: the network's own, with nothing rounded that need not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class WithoutAutocast(TorchFunctionMode):
    """Runs every operation without autocast, also where the network turns it on in its own forward pass.

    What a plan's gradients would differ by from plain ones in bfloat16 can be more than what a wrong plan's would in float32.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.kind, self.met = device.type, False  # met: whether there was any

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not torch.is_autocast_enabled(self.kind):
            return func(*args, **(kwargs or {}))
        self.met = True
        torch.set_autocast_enabled(self.kind, False)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_autocast_enabled(self.kind, True)


@contextmanager
def whole_products(device: torch.device) -> Iterator[None]:
    """Of float32. Rounded to ten bits as GPUs like to, gradients of a deep network differ by more than a wrong plan's.

    Convolutions are rounded by cuDNN alone. Its precision is left as it is, since a network may read or set it in a pass.
    """
    if device.type != "cuda":
        yield
        return
    backends: Any = torch.backends  # its parts are made when it is imported
    enabled, precision = backends.cudnn.enabled, backends.cuda.matmul.fp32_precision
    backends.cudnn.enabled = False
    if precision == "tf32":
        backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        backends.cudnn.enabled = enabled
        if precision == "tf32":
            backends.cuda.matmul.fp32_precision = precision
