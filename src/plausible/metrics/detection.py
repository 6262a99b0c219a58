"""Out-of-distribution detection: a higher score means more out of distribution, and outliers are the positive class."""

import torch
from torch import Tensor

from plausible.metrics.accumulation import share, wide
from plausible.metrics.inputs import Array, as_tensors, nan_complaint, refuse, require_floating, require_some
from plausible.metrics.ranking import area_under_roc


def auroc_ood(score_in: Array, score_out: Array) -> Tensor:
    """Probability that an outlier scores higher than an inlier, ties counting one half; 0.5 is chance.

    Args:
        score_in: Scores of in-distribution examples, any shape.
        score_out: Scores of out-of-distribution examples, any shape.
    """
    inside, outside, dtype = _scores(score_in, score_out)
    is_outlier = torch.cat([torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(outside, dtype=torch.bool)])
    return area_under_roc(torch.cat([inside, outside]), is_outlier).to(dtype)


def aupr_ood(score_in: Array, score_out: Array) -> Tensor:
    """Average precision at finding outliers: Σ_k (R_k - R_{k-1}) P_k over distinct thresholds, without interpolation.

    Chance is the share of outliers among all examples, so compare only tables with the same proportions.

    Args:
        score_in: Scores of in-distribution examples, any shape.
        score_out: Scores of out-of-distribution examples, any shape.
    """
    inside, outside, dtype = _scores(score_in, score_out)
    # Each outlier adds one step of recall, taken at the precision of its own score as the threshold.
    hits = outside.numel() - torch.searchsorted(outside.sort().values, outside)
    false_alarms = inside.numel() - torch.searchsorted(inside.sort().values, outside)
    return (wide(hits) / wide(hits + false_alarms)).mean().to(dtype)


def fpr95(score_in: Array, score_out: Array) -> Tensor:
    """Share of inliers flagged by the strictest threshold that flags at least 95 % of the outliers; lower is better.

    An example is flagged when its score is at or above the threshold. Some papers make the inliers the positive class
    and report the share of outliers missed when 95 % of the inliers are accepted; that is another number.

    Args:
        score_in: Scores of in-distribution examples, any shape.
        score_out: Scores of out-of-distribution examples, any shape.
    """
    inside, outside, dtype = _scores(score_in, score_out)
    needed = -(-95 * outside.numel() // 100)  # rounded up in integers: 0.95 * 20 must be 19, not 19.000000000000004
    threshold = outside.sort(descending=True).values[needed - 1]
    return share(inside >= threshold, dtype)


def _scores(score_in: Array, score_out: Array) -> tuple[Tensor, Tensor, torch.dtype]:
    inside, outside = as_tensors({"score_in": score_in, "score_out": score_out})
    for name, score in (("score_in", inside), ("score_out", outside)):
        require_floating(name, score)
        require_some(name, score)
    refuse(nan_complaint("score_in", inside), nan_complaint("score_out", outside))
    dtype = torch.promote_types(inside.dtype, outside.dtype)
    sortable = torch.promote_types(dtype, torch.float32)  # widening keeps every order and every tie
    return inside.detach().flatten().to(sortable), outside.detach().flatten().to(sortable), dtype
