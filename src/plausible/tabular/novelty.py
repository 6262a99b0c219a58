"""Is a row like those the network was trained on?

The distance to the nearest of a few centres of the training rows, against what rows that the centres were not made
from have. Centres are averages, so the file holds no row of anybody's data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_CENTRES = 64
ROWS_PER_CENTRE = 5
QUANTILE = 0.99
KEPT_BACK = 0.25  # of the training rows, for the threshold


@dataclass(frozen=True)
class Novelty:
    """Centres of training rows in the space of features, and the distance beyond which a row is far from them."""

    centres: np.ndarray
    threshold: float

    def far(self, x: np.ndarray) -> np.ndarray:
        """Which rows are far."""
        return _nearest(x, self.centres) > self.threshold

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"centres": np.round(self.centres, 5).tolist(), "threshold": self.threshold}

    @staticmethod
    def from_data(data: dict[str, Any]) -> Novelty:
        """The inverse of `as_data`."""
        return Novelty(np.array(data["centres"], dtype=np.float64), data["threshold"])


def learn_novelty(x: np.ndarray, seed: int) -> Novelty:
    """Centres of three quarters of the rows; the threshold is the 99 % quantile of the other quarter's distances."""
    from sklearn.cluster import KMeans  # here, because it takes longer to import than most commands to run

    order = np.random.default_rng(seed).permutation(len(x))
    kept_back = max(1, round(KEPT_BACK * len(x)))
    own, others = x[order[kept_back:]], x[order[:kept_back]]
    distinct = len(np.unique(own, axis=0))
    count = max(1, min(MOST_CENTRES, distinct, len(own) // ROWS_PER_CENTRE))
    centres = KMeans(count, n_init=1, random_state=seed).fit(own).cluster_centers_
    novelty = Novelty(np.round(centres, 5), 0.0)
    threshold = float(np.quantile(_nearest(others, novelty.centres), QUANTILE))
    return Novelty(novelty.centres, max(threshold, 1e-6))  # rows that all agree: rounding is not distance


def _nearest(x: np.ndarray, centres: np.ndarray, rows: int = 4096) -> np.ndarray:
    """Each row's distance to the nearest centre, some rows at a time."""
    parts = (x[start : start + rows] for start in range(0, len(x), rows))
    # |a - b|² = a² - 2ab + b² in float64: no array of all differences, and rounding is far below any threshold.
    squares = [((p**2).sum(1)[:, None] - 2 * p @ centres.T + (centres**2).sum(1)).min(1) for p in parts]
    return np.sqrt(np.maximum(np.concatenate(squares), 0)) if squares else np.empty(0)
