"""A bar with a rate and an ETA, drawn a few times a second."""

from __future__ import annotations

import sys
import time
from typing import Any

REFRESH = 0.2  # seconds between two drawings: looking at a tensor more often would slow the run down


class Progress:
    """Progress of one run. The rate leaves the first step out, which may have compiled or captured."""

    def __init__(self, label: str, first: int, steps: int, shown: bool):
        self.first, self.steps, self._label = first, steps, label
        self._start: float | None = None
        self._start_step = first
        self._drawn = 0.0
        self._bar: Any = None
        self._task: Any = None
        if shown and steps > first and sys.stderr.isatty():
            self._open()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(
                "{task.completed:,.0f}/{task.total:,.0f} · {task.fields[rate]} · {task.fields[eta]} left{task.fields[extra]}"
            ),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._task = self._bar.add_task(
            self._label, total=self.steps, completed=self.first, rate="…", eta="…", extra=""
        )

    def due(self) -> bool:
        """Whether it is time to draw (so that the caller fetches numbers only then)."""
        return self._bar is not None and time.monotonic() - self._drawn >= REFRESH

    def after(self, step: int) -> None:
        """Count a finished step."""
        if self._start is None:
            self._start, self._start_step = time.monotonic(), step + 1

    def rate(self, done: int) -> float | None:
        """Steps a second, from the steps after the first."""
        if self._start is None or done <= self._start_step:
            return None
        return (done - self._start_step) / max(time.monotonic() - self._start, 1e-9)

    def eta(self, done: int) -> float | None:
        """Seconds until the end at the rate so far."""
        rate = self.rate(done)
        return None if not rate else (self.steps - done) / rate

    def draw(self, done: int, numbers: dict[str, float]) -> None:
        """Show where the run is."""
        if self._bar is None:
            return
        self._drawn = time.monotonic()
        rate, eta = self.rate(done), self.eta(done)
        extra = "".join(f" · {k.replace('_', ' ')} {v:,.4g}" for k, v in numbers.items())
        self._bar.update(
            self._task,
            completed=done,
            rate="…" if rate is None else f"{rate:,.1f} steps/s",
            eta="…" if eta is None else _clock(eta),
            extra=extra,
        )

    def close(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._bar is not None:
            self._bar.stop()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
