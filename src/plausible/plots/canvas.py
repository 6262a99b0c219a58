"""Empty figures that all pictures start from. Matplotlib is imported when the first one is made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSTERIOR, SECOND, PRIOR = "#1f5fa8", "#d9822b", "#8a8a8a"
PANEL = (3.4, 2.6)  # inches
MOST_COLUMNS = 4


def figure_with(panels: int, size: tuple[float, float] = PANEL) -> tuple[Figure, list[Any]]:
    """A figure and its panels, row by row; no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, MOST_COLUMNS)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[panels:]:
        axis.remove()
    for axis in axes[:panels]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes[:panels]
