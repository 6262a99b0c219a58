"""Scores of predicted numbers: points, samples and intervals. Means are over every entry of y."""

import torch
from torch import Tensor

from plausible.metrics.accumulation import share
from plausible.metrics.inputs import (
    Array,
    as_tensors,
    infinity_complaint,
    nan_complaint,
    refuse,
    require_floating,
    require_one_shape,
    require_some,
)


def rmse(mean: Array, y: Array) -> Tensor:
    """Root mean squared error.

    Args:
        mean: Point predictions, usually the predictive mean.
        y: What happened, in the same shape.
    """
    mean, y = as_tensors({"mean": mean, "y": y})
    require_floating("mean", mean)
    require_one_shape({"mean": mean, "y": y})
    require_some("y", y)
    refuse(nan_complaint("mean", mean), infinity_complaint("y", y))
    mean, y, dtype = _in_one_type(mean, y)
    return (mean - y).square().mean().sqrt().to(dtype)


def crps(samples: Array, y: Array) -> Tensor:
    """Continuous ranked probability score of an empirical distribution, in the unit of y; lower is better.

    mean_s |x_s - y| - ½ mean_{s,s'} |x_s - x_s'|, where all S² pairs count: the exact score of the S-point empirical
    CDF (the energy form), and the absolute error when S = 1. As an estimate for the distribution that was sampled it is
    biased upwards by O(1 / S); the unbiased estimate divides the pairs by S (S - 1) instead. Takes O(S log S).

    Args:
        samples: Draws from the predictive distribution, sample axis first: (S, *y.shape).
        y: What happened.
    """
    samples, y = as_tensors({"samples": samples, "y": y})
    require_floating("samples", samples)
    if samples.ndim == 0 or samples.shape[1:] != y.shape:
        last_axis_fits = samples.ndim > 0 and samples.shape[:-1] == y.shape
        way_out = "did you mean samples.movedim(-1, 0)?" if last_axis_fits else "the sample axis comes first"
        raise ValueError(
            f"samples must be (S, *y.shape), got {tuple(samples.shape)} for y of {tuple(y.shape)}; {way_out}"
        )
    require_some("samples", samples)
    refuse(infinity_complaint("samples", samples), infinity_complaint("y", y))
    samples, y, dtype = _in_one_type(samples, y)

    # The quantile form of the same number, (2 / S²) Σ_i (x_(i) - y) (S·1[x_(i) > y] - i + ½): one sort instead of S²
    # pairs, and no term is negative, so nothing cancels.
    offset = (samples - y).sort(dim=0).values
    count = offset.shape[0]
    middle_rank = torch.arange(count, device=offset.device, dtype=offset.dtype) + 0.5
    weight = count * (offset > 0) - middle_rank.reshape(-1, *[1] * y.ndim)
    return ((offset * weight).mean() * (2 / count)).to(dtype)


def picp(lower: Array, upper: Array, y: Array) -> Tensor:
    """Prediction interval coverage probability: the share of y inside [lower, upper], ends included.

    Args:
        lower: Lower ends; may be minus infinity.
        upper: Upper ends, in the same shape; may be infinity.
        y: What happened, in the same shape.
    """
    lower, upper, y, dtype = _intervals(lower, upper, y)
    return share((lower <= y) & (y <= upper), dtype)


def interval_score(lower: Array, upper: Array, y: Array, level: float) -> Tensor:
    """Width plus a penalty for missing, (u - l) + 2 / (1 - level) · [(l - y)⁺ + (y - u)⁺]; lower is better.

    Proper for the central interval (Gneiting & Raftery, 2007). An infinite interval scores infinity.

    Args:
        lower: Lower ends.
        upper: Upper ends, in the same shape.
        y: What happened, in the same shape.
        level: The coverage the interval claims, such as 0.9 for one from the 5 % to the 95 % quantile.
    """
    if not 0 < level < 1:
        way_out = f"did you mean {level / 100}?" if 1 < level < 100 else "0.9 is a 90 % interval"
        raise ValueError(f"level must be between 0 and 1, got {level}; {way_out}")
    lower, upper, y, dtype = _intervals(lower, upper, y)
    missed_by = (lower - y).clamp(min=0) + (y - upper).clamp(min=0)
    return (upper - lower + missed_by * (2 / (1 - level))).mean().to(dtype)


def _intervals(lower: Array, upper: Array, y: Array) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    lower, upper, y = as_tensors({"lower": lower, "upper": upper, "y": y})
    require_floating("lower", lower)
    require_floating("upper", upper)
    require_one_shape({"lower": lower, "upper": upper, "y": y})
    require_some("y", y)
    crossed = lower > upper
    refuse(
        nan_complaint("lower", lower),
        nan_complaint("upper", upper),
        infinity_complaint("y", y),
        (
            crossed.any(),
            lambda: (
                f"lower must not exceed upper, got [{lower[crossed][0].item():.6g}, {upper[crossed][0].item():.6g}]; "
                "did you swap them?"
            ),
        ),
    )
    dtype = torch.promote_types(lower.dtype, upper.dtype)
    lower, y, dtype = _in_one_type(lower.to(dtype), y)
    return lower, upper.to(lower.dtype), y, dtype


def _in_one_type(predicted: Tensor, y: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both in at least float32, where squares of large half-precision numbers still fit; and the type of the answer."""
    dtype = torch.promote_types(predicted.dtype, y.dtype)
    working = torch.promote_types(dtype, torch.float32)
    return predicted.to(working), y.to(working), dtype
