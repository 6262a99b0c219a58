"""What layers keep from pass to pass, such as the vectors of a spectral norm, as it was before a plan was made."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Kept:
    """The buffers of a network's private copy, and those that come in as an input.

    They are put back before the next pass, not after one: its backward pass may need them as they are.
    """

    def __init__(self, module: nn.Module, given: Mapping[str, Tensor] | None):
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        self.places = [(m, k, b) for m in module.modules() for k, b in m._buffers.items() if b is not None]
        tensors = {id(b): b for b in [*(b for _, _, b in self.places), *(given or {}).values()]}
        self.values = [(b, b._version, b.clone()) for b in tensors.values() if not (b.is_inference() or wrapped(b))]

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what passes wrote, or replaced."""
        for module, name, buffer in self.places:
            module._buffers[name] = buffer
        for i, (buffer, version, value) in enumerate(self.values):
            if buffer._version != version:
                buffer.copy_(value)
                self.values[i] = buffer, buffer._version, value
