"""What the settings of all natural-gradient methods must be."""

from __future__ import annotations

from typing import Any

from ...core.method import require
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Number


def check_settings(method: Any) -> None:
    """Raise a ValueError for numbers out of range."""
    rate, momentum, decay = method.learning_rate, method.momentum, method.curvature_decay
    samples = getattr(method, "num_samples", 1)
    require(rate is None or rate > 0, f"learning_rate must be positive, got {rate}")
    require(0 <= momentum < 1, f"momentum must lie in [0, 1), got {momentum}")
    require(decay is None or 0 <= decay < 1, f"curvature_decay must lie in [0, 1), got {decay}")
    require(isinstance(samples, int) and samples >= 1, f"num_samples must be a positive integer, got {samples}")
    find_schedule(method.schedule)


def number(setting: Number | None) -> Number:
    """A setting that `resolved` has made a number of."""
    assert setting is not None
    return setting
