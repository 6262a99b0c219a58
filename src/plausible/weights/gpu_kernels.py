"""Where kernels written in Triton run. Each has a path of plain operations beside it, which all other devices take."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

OLDEST = (8, 0)  # compute capability whose tensor cores know bfloat16 and tf32


def kernels_run_on(device: torch.device) -> bool:
    """Whether this is an NVIDIA GPU that is new enough, and the compiler is there; it comes with PyTorch's builds for GPUs."""
    return device.type == "cuda" and _can(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _can(index: int) -> bool:
    if torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(index) >= OLDEST


def launch(kernel: Any, programs: int | tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run a kernel on the device of its first tensor, which need not be the current one.

    Args:
        kernel: Made by `triton.jit`.
        programs: How many, along one axis or several; none is nothing to do.
        arguments: Of the kernel.
        options: Its constants, and how it is compiled.
    """
    grid = (programs,) if isinstance(programs, int) else programs
    if 0 in grid:
        return
    with torch.cuda.device_of(_first_tensor(arguments)):  # Triton launches on the current one
        kernel[grid](*arguments, **options)


def _first_tensor(arguments: tuple[Any, ...]) -> Tensor:
    flat = (a for argument in arguments for a in (argument if isinstance(argument, tuple) else (argument,)))
    return next(a for a in flat if isinstance(a, Tensor))
