"""The first step whose log joint was not finite, found without waiting for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

TOGETHER = 64  # steps that a GPU looks at at once: one by one they would take a small network a tenth of its time


class FirstNotFinite:
    """A watch over the log joints of a run; what is on a GPU stays there until somebody asks."""

    def __init__(self) -> None:
        self._first: int | Tensor = -1
        self._values: Tensor | None = None  # of the steps that nobody has looked at yet
        self._begin = self._count = 0

    def see(self, step: int, log_joint: Tensor) -> None:
        """Take down the log joint of a step, of every mode; steps come one after another."""
        if log_joint.device.type == "cpu":
            if int(self._first) < 0 and not bool(torch.isfinite(log_joint).all()):
                self._first = step
            return
        if self._values is None:
            self._values = log_joint.new_empty(TOGETHER, log_joint.numel())
        if self._count == 0:
            self._begin = step
        # A copy: what a step shows may be memory of its state.
        self._values[self._count].copy_(log_joint.flatten())
        self._count += 1
        if self._count == TOGETHER:
            self._look(self._values)

    def found(self) -> int:
        """The first step that was wrong, -1 where none was."""
        if self._values is not None and self._count:
            self._look(self._values)
        self._first = int(self._first)
        return self._first

    def _look(self, values: Tensor) -> None:
        wrong = ~torch.isfinite(values[: self._count]).all(1)
        here = torch.where(wrong.any(), self._begin + wrong.int().argmax(), -1)
        self._first = here if isinstance(self._first, int) and self._first < 0 else _earlier(self._first, here)
        self._count = 0


def _earlier(first: int | Tensor, later: Tensor) -> int | Tensor:
    return torch.where(first < 0, later, first) if isinstance(first, Tensor) else first
