"""What the posteriors of small classifiers are like: their predictions, boundaries, weights and scales, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from .advi_prior_points import distance_from_boundary, picture_places

LOOKED_AT = 2000  # fresh points whose uncertainty is set against their distance
DISTANCES = 8  # parts of these points, of one size
MAP = 41  # places along an axis of a map
WIDEST, BINS = 6.0, 60  # of the histogram of last-layer weights; what is beyond counts at its edge
SMALL = 0.1  # a weight whose mean is below it is next to nothing


def guessed(answer: pl.Posterior, parts: Sequence[tuple[Tensor, Tensor]], samples: int) -> list[dict[str, float]]:
    """Of each part, accuracy in per cent and mean negative log likelihood of the average over the posterior."""
    x, y = (torch.cat(tensors).to(answer.device) for tensors in zip(*parts, strict=True))
    predicted = answer.predict(x, num_samples=samples)
    right, log_prob = (predicted.probs.argmax(1) == y).double(), predicted.log_prob(y).double()
    sizes = [len(own) for _, own in parts]
    return [
        {"accuracy": 100 * float(r.mean()), "nll": -float(p.mean())}
        for r, p in zip(right.split(sizes), log_prob.split(sizes), strict=True)
    ]


def mean_and_interval(values: Sequence[float], level: float = 0.95) -> dict[str, float]:
    """Student's interval of the mean."""
    from scipy.stats import t  # slow to import

    told = torch.tensor(values, dtype=torch.float64)
    half = float(t.ppf((1 + level) / 2, len(told) - 1)) * float(told.std()) / math.sqrt(len(told))
    mean = float(told.mean())
    return {"mean": mean, "low": mean - half, "high": mean + half}


def spread_of_draws(answer: pl.Posterior, x: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over draws of the second class's probability."""
    shares = answer.predict(x.to(answer.device), num_samples=samples).outputs.softmax(-1)[..., 1]
    return shares.mean(0).cpu(), shares.std(0).cpu()


def map_details(name: str, noise: float, answer: pl.Posterior, samples: int) -> dict[str, Any]:
    """Class probability and its deviation over a picture."""
    mean, deviation = spread_of_draws(answer, picture_places(name, noise, MAP), samples)
    return {"noise": noise, "places": MAP, "mean": _rounded(mean), "deviation": _rounded(deviation)}


def boundary_details(
    name: str, noise: float, answers: Sequence[pl.Posterior], fresh: Tensor, samples: int
) -> dict[str, Any]:
    """Whether the deviation falls with the distance from the boundary: rank correlations, and means over parts."""
    x = fresh[:LOOKED_AT]
    distance = distance_from_boundary(name, noise, x)
    deviations = [spread_of_draws(answer, x, samples)[1] for answer in answers]
    parts = distance.argsort().tensor_split(DISTANCES)
    mean = torch.stack(deviations).mean(0)
    return {
        "correlation": [round(rank_correlation(distance, d), 4) for d in deviations],
        "distance": _rounded(torch.stack([distance[p].mean() for p in parts])),
        "deviation": _rounded(torch.stack([mean[p].mean() for p in parts]), 4),
    }


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, for values without ties."""
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def weight_details(answers: Sequence[pl.Posterior], samples: int) -> dict[str, Any]:
    """The last layer's weights (no biases) over all seeds: how many are next to nothing, and how heavy their tails are."""
    drawn = torch.stack([_last_layer(answer, samples) for answer in answers])  # (seeds, samples, weights)
    means = drawn.mean(1).flatten()
    centred = means - means.mean()
    kurtosis = float((centred**4).mean() / (centred**2).mean().clamp(min=1e-12) ** 2)
    edges = drawn.clamp(-WIDEST, WIDEST)
    counts = torch.histc(edges.float(), BINS, -WIDEST, WIDEST)
    return {
        "small": float((means.abs() < SMALL).double().mean()),
        "kurtosis": round(kurtosis, 4),  # 3 where means are normal, 1.5 or so where they are two heaps
        "means": _rounded(means),
        "density": _rounded(counts / counts.sum() / (2 * WIDEST / BINS), 4),
    }


def _last_layer(answer: pl.Posterior, samples: int) -> Tensor:
    natural = answer.model.constrain(answer.sample(samples, seed=0))
    name = [k for k in natural if k.endswith(".weight") and not k.startswith("prior.")][-1]
    return natural[name].flatten(1).double().cpu()


def learnt_scales(answers: Sequence[pl.Posterior], samples: int) -> dict[str, list[float]]:
    """Every layer's scale: the posterior mean of its logarithm, back on its own axis, for each seed."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        natural = answer.model.constrain(answer.sample(samples, seed=0))
        for name, values in natural.items():
            if name.startswith("prior."):
                found.setdefault(name, []).append(round(float(values.double().log().mean().exp()), 4))
    return found


def _rounded(values: Tensor, digits: int = 3) -> list[float]:
    return [round(value, digits) for value in values.flatten().tolist()]
