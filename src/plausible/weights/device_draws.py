"""Numbers and new keys of a key on a GPU, each by one kernel.

In torch's own operations a draw passes over its words more than a hundred times. The words are the same ones; logarithms,
sines and cosines may differ in their last bits, as between any two devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .algebra import under_vmap
from .gpu_kernels import kernels_run_on, launch

BLOCK = 512  # pairs a program draws


def is_on_device(*words: Tensor) -> bool:
    """Whether the kernel may read these words: plain memory on a GPU that nobody traces or transforms."""
    if not all(kernels_run_on(w.device) for w in words) or under_vmap() or torch.compiler.is_compiling():
        return False
    return torch._C._len_torch_dispatch_stack() == 0


def draw(key: Tensor, step: Tensor, call: int, n: int, normal: bool) -> Tensor:
    """n numbers of a call in float32: standard normals, or uniform ones strictly between 0 and 1."""
    from .device_draw_kernels import pairs as kernel  # needs Triton

    out = torch.empty(n, dtype=torch.float32, device=key.device)
    half = (n + 1) // 2
    launch(kernel, (half + BLOCK - 1) // BLOCK, key[0], key[1], step, call, half, n, out, NORMAL=normal, BLOCK=BLOCK)
    return out


def new_key(key: Tensor, step: Tensor, call: int) -> Tensor:
    """The two words of a call, int32 of shape (2,)."""
    from .device_draw_kernels import words as kernel  # needs Triton

    out = torch.empty(2, dtype=torch.int32, device=key.device)
    launch(kernel, 1, key[0], key[1], step, call, out, BLOCK=32)
    return out
