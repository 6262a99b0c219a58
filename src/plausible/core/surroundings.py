"""What a run changes about Python and torch while it lasts: who hears Ctrl-C, which GPU is current, which kernels run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of a step, so that what is written is whole; a second one does not wait."""
    pressed: list[bool] = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    foreign = signal.getsignal(signal.SIGINT) is None  # of a program that Python is a part of; it could not be put back
    if foreign or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch take deterministic kernels alone, where that is wanted."""
    if not wanted:
        yield
        return
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def current_device(device: torch.device) -> Any:
    """Make a GPU the current one: streams, graphs and Triton's kernels go there, wherever tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
