"""Which draws of a chain are kept: none of its beginning, and of the rest as many as fit."""

from __future__ import annotations

import logging
import math
from typing import Any

from ...core.method import require

log = logging.getLogger("plausible")

DRAW_BUDGET = 16 * 1024**3  # bytes of one mode's kept draws, in memory or, where that is not enough, in files


def kept_draws(model: Any, num_steps: int, dropped: int | None, thin: int, beginning: str) -> tuple[int, int]:
    """How many steps are dropped (None: two fifths) and every how many-th of the others is kept.

    Args:
        model: Whose unknowns a draw is.
        num_steps: All steps.
        dropped: Those that are not kept, as told.
        thin: As told; more where the draws would not fit.
        beginning: What the dropped steps are called.
    """
    dropped = 2 * num_steps // 5 if dropped is None else dropped
    require(hasattr(dropped, "__index__"), f"{beginning} must be a whole number of steps, got {dropped}")
    require(
        num_steps == 0 or dropped < num_steps,
        f"a {beginning} of {dropped} leaves no draw of {num_steps} steps; run more, or give a shorter one",
    )
    bytes_each = sum(w.numel() * w.element_size() for w in model.start.values())
    wide = max(thin, math.ceil((num_steps - dropped) * bytes_each / DRAW_BUDGET))
    if wide > thin:
        log.warning("every %d-th draw is kept, since more would take over %d GiB", wide, DRAW_BUDGET >> 30)
    require(
        num_steps == 0 or num_steps - dropped >= wide,
        f"no draw would be kept: every {wide}-th of the {num_steps - dropped} steps after {beginning}; run more, or thin less",
    )
    return dropped, wide
