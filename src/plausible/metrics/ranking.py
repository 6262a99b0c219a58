"""Order statistics that treat ties fairly: the answer is the mean over all ways to break them."""

import torch
from torch import Tensor

from plausible.metrics.accumulation import wide


def area_under_roc(score: Tensor, positive: Tensor) -> Tensor:
    """P(score of a positive > score of a negative) + ½ P(they are equal), by mid-ranks (Mann & Whitney, 1947).

    NaN when one of the two groups is empty.
    """
    ordered = score.sort().values
    below = torch.searchsorted(ordered, score)
    not_above = torch.searchsorted(ordered, score, right=True)
    num_positive = positive.sum()
    num_negative = positive.numel() - num_positive
    # Twice the mid-rank is a whole number, so nothing is rounded before the last division.
    twice_rank = below + not_above + 1
    twice_wins = (twice_rank * positive).sum() - num_positive * (num_positive + 1)
    return wide(twice_wins) / (2 * wide(num_positive) * wide(num_negative))


def average_over_ties(ordered: Tensor, flags: Tensor) -> Tensor:
    """Replace each flag by the mean flag among the entries of `ordered` (ascending) that are equal to its own."""
    first = torch.searchsorted(ordered, ordered)
    past_last = torch.searchsorted(ordered, ordered, right=True)
    running = torch.cat([flags.new_zeros(1, dtype=torch.int64), flags.cumsum(0)])
    return wide(running[past_last] - running[first]) / (past_last - first)
