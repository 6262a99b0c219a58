"""Plain callables on one dictionary a step; returning True asks `fit` to stop.

The dictionary has "step", "steps", "epoch" and whatever the method shows ("log_joint", ...; tensors, one value per mode,
so that looking costs nothing unless a callback reads them); after the last step of an epoch also "validation_nll"
where `fit` was given validation data. A callback with `state()` and `restore(state)` survives a resume.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from torch import Tensor


def _number(value: Any) -> Any:
    return float(value.float().mean()) if isinstance(value, Tensor) else value


class EarlyStopping:
    """Stop when the validation loss has not improved for `patience` epochs."""

    def __init__(self, patience: int = 5, minimum_change: float = 0.0, monitor: str = "validation_nll"):
        if patience < 1:
            raise ValueError(f"patience must be at least one epoch, got {patience}")
        self.patience, self.minimum_change, self.monitor = patience, minimum_change, monitor
        self.best, self.bad_epochs = math.inf, 0

    def __call__(self, event: dict[str, Any]) -> bool:
        """Look at an epoch's validation loss, where there is one."""
        if self.monitor not in event:
            return False
        value = _number(event[self.monitor])
        if value < self.best - self.minimum_change:
            self.best, self.bad_epochs = value, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience

    def state(self) -> dict[str, Any]:
        """What a checkpoint must know."""
        return {"best": None if math.isinf(self.best) else self.best, "bad_epochs": self.bad_epochs}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best = math.inf if state["best"] is None else state["best"]
        self.bad_epochs = state["bad_epochs"]


class CSVLogger:
    """One row every so many steps, and at every validation. A resumed run goes on in the same file."""

    def __init__(self, path: str | Path, every: int = 100):
        self.path, self.every = Path(path), every
        self._columns: list[str] | None = None
        self._last = -1

    def __call__(self, event: dict[str, Any]) -> None:
        """Write a row if it is time."""
        if event["step"] % self.every and "validation_nll" not in event:
            return
        row = {k: _number(v) for k, v in event.items()}
        if self._columns is None:
            self._columns = [*row, *(["validation_nll"] if "validation_nll" not in row else [])]
            if self._last < 0 or not self.path.exists():
                with open(self.path, "w", newline="") as handle:
                    csv.writer(handle).writerow(self._columns)
        if event["step"] <= self._last:
            return
        self._last = event["step"]
        with open(self.path, "a", newline="") as handle:
            csv.writer(handle).writerow([row.get(c, "") for c in self._columns])

    def state(self) -> dict[str, Any]:
        """What a checkpoint must know."""
        return {"columns": self._columns, "last": self._last}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: rows written after it was taken are dropped, since they will be written again."""
        self._columns, self._last = state["columns"], state["last"]
        if self._columns and self.path.exists():
            place = self._columns.index("step")
            with open(self.path, newline="") as handle:
                rows = list(csv.reader(handle))
            kept = [r for i, r in enumerate(rows) if i == 0 or int(r[place]) <= self._last]
            with open(self.path, "w", newline="") as handle:
                csv.writer(handle).writerows(kept)


class TensorBoard:
    """Scalars for TensorBoard (the extra `tensorboard`)."""

    def __init__(self, folder: str | Path, every: int = 100):
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.every = SummaryWriter(str(folder)), every

    def __call__(self, event: dict[str, Any]) -> None:
        """Write scalars if it is time."""
        if event["step"] % self.every and "validation_nll" not in event:
            return
        for k, v in event.items():
            if k not in ("step", "steps"):
                self.writer.add_scalar(k, _number(v), event["step"])
        self.writer.flush()
