"""Clocks that wait for the device: of a call, of the steps of a fit, and of two loops that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sync() -> None:
    """Wait for what the GPU still does, if it has been asked for anything."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Of one call."""
    sync()
    start = clock()
    call()
    sync()
    return clock() - start


def median_seconds(call: Callable[[], object], repeats: int, warm_up: int = 1) -> float:
    """Of a call, after some that do not count."""
    for _ in range(warm_up):
        call()
    return statistics.median(seconds(call) for _ in range(repeats))


class StepTimer:
    """A callback that times steps `first` to `last` of a fit: what comes before is preparation."""

    def __init__(self, first: int, last: int):
        self.first, self.last = first, last
        self.marks: list[float] = []

    def __call__(self, event: dict) -> None:
        if event["step"] in (self.first, self.last):
            sync()
            self.marks.append(time.perf_counter())

    @property
    def milliseconds(self) -> float:
        """Of a step."""
        return (self.marks[1] - self.marks[0]) / (self.last - self.first) * 1e3


class Interleaved:
    """A callback that runs the hand-written step after each of ours: a machine that slows down slows both."""

    def __init__(self, step: Callable[[], object]):
        self.step = step
        self.mine: list[float] = []
        self.theirs: list[float] = []
        self.left: float | None = None

    def __call__(self, event: dict) -> None:
        sync()
        now = time.perf_counter()
        if self.left is not None:
            self.mine.append((now - self.left) * 1e3)
        self.step()
        sync()
        self.left = time.perf_counter()
        self.theirs.append((self.left - now) * 1e3)
