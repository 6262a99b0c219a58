"""Where kernels written in Triton run. Each has a path of plain operations beside it, which all other devices take."""

from __future__ import annotations

import functools
import importlib.util

import torch

OLDEST = (8, 0)  # compute capability whose tensor cores know bfloat16 and tf32


def kernels_run_on(device: torch.device) -> bool:
    """Whether this is an NVIDIA GPU that is new enough, and the compiler is there; it comes with PyTorch's builds for GPUs."""
    return device.type == "cuda" and _can(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _can(index: int) -> bool:
    if torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(index) >= OLDEST
