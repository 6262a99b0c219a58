"""How far each method is from the posterior itself: long chains on the same model, checked before they are trusted."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import metrics
from ..core.diagnostics import ess, predicted, r_hat
from ..core.errors import NotSupported
from ..core.fit import fit
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.predictive import Predictive
from ..datasets import Dataset
from .tables import Column

CHAINS, TRANSITIONS, LONGER, ATTEMPTS = 4, 1000, 4, 2
LARGEST_R_HAT, FEWEST_DRAWS, SHARE = 1.05, 100, 0.95  # of the predicted numbers this share must satisfy both
MOST_DIVERGENT = 0.01  # divergent transitions for each draw: where there are more, chains avoid a part of the posterior
DRAWS = 1024  # averaged over for the truth's prediction
GRID, REACH = 201, 8.0  # points, and standard deviations to either side, of the integral over a number's density

CLASSES = {
    "agreement": Column("agree", ".1%", "high", "share of test examples with the truth's answer; higher is better"),
    "total_variation": Column(
        "TV", ".3f", "low", "distance of its probabilities from the truth's, 0 to 1 (total variation); lower is better"
    ),
    "spread": Column(
        "sd gap", ".2f", "low",
        "mean difference between its spread over networks and the truth's, as a share of the truth's; 1 for a single network",
    ),
}  # fmt: skip
NUMBERS = {
    "total_variation": CLASSES["total_variation"]._replace(
        meaning="distance of its predicted density from the truth's, 0 to 1 (total variation); lower is better"
    ),
    "spread": CLASSES["spread"]._replace(
        meaning="mean difference between its predicted standard deviation and the truth's, as a share of the truth's"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A posterior by long chains.

    Attributes:
        name: Of the method that ran them.
        posterior: The chains.
        predictive: What they predict for the test part.
        seconds: What they took.
        verified: Whether they agree with one another closely enough to be held against anything.
        verdict: The same in words.
    """

    name: str
    posterior: Any
    predictive: Predictive
    seconds: float
    verified: bool
    verdict: str


def columns(data: Dataset) -> dict[str, Column]:
    """What is reported of the distance from the truth."""
    return CLASSES if data.task == "classification" else NUMBERS


def find_truth(
    name: str, method: Method, model: BayesianModel, data: Dataset, transitions: int | None, seed: int
) -> Truth:
    """Run chains until they agree on the test part, or until the second attempt, four times as long, does not either.

    Args:
        name: Of the method, as it is told.
        method: A full-batch sampler.
        model: What all methods fit.
        data: Likewise.
        transitions: Of each chain at first, warm-up included; None takes 1,000.
        seed: Of the first attempt.
    """
    if not method.full_batch:
        raise NotSupported(f"the truth needs an exact sampler, hmc or nuts, got {name}")
    steps, began = transitions or TRANSITIONS, time.perf_counter()
    for attempt in range(ATTEMPTS):
        posterior: Any = fit(
            model, data.train, method, steps=steps, num_modes=CHAINS, seed=seed + attempt, init="reset", progress=False
        )
        verified, verdict = judged(posterior, data.x_test)
        if verified:
            break
        steps *= LONGER
    predictive = posterior.predict(data.x_test, num_samples=DRAWS)
    return Truth(
        name=name, posterior=posterior, predictive=predictive, seconds=time.perf_counter() - began, verified=verified,
        verdict=f"{name} with {CHAINS} chains of {len(posterior.components[0])} draws after warm-up: {verdict}",
    )  # fmt: skip


def mixing(posterior: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """R-hat and effective draws of every number that chains predict at x."""
    chains = posterior.components
    length = min(len(chain) for chain in chains)
    values = torch.stack([predicted(chain, x)[:length] for chain in chains])
    # Probabilities that are zero in every draw have nothing to mix.
    values = values[..., (values != values[:1, :1]).flatten(0, 1).any(0)]
    if not values.shape[-1]:
        return values.new_empty(0), values.new_empty(0)
    return r_hat(values), ess(values)


def judged(posterior: Any, x: Tensor) -> tuple[bool, str]:
    """Whether chains agree on what they predict and went everywhere, and that in words."""
    spread, worth = mixing(posterior, x)
    good = (spread < LARGEST_R_HAT) & (worth >= FEWEST_DRAWS)
    share = float(good.double().mean()) if good.numel() else 0.0  # where no prediction ever changes, nothing is known
    words = (
        f"R-hat below {LARGEST_R_HAT} and at least {FEWEST_DRAWS} effective draws for {share:.0%} of the predictions"
    )
    diverged = int(
        sum(float(c.statistics["divergent"].sum()) for c in posterior.components if "divergent" in c.statistics)
    )
    often = diverged > MOST_DIVERGENT * sum(len(chain) for chain in posterior.components)
    if diverged:
        words += f", {diverged} divergent transitions"
    if share >= SHARE and not often:
        return True, words
    asked = [f"{SHARE:.0%} are asked"] * (share < SHARE) + [f"at most {MOST_DIVERGENT:.0%} may diverge"] * often
    return False, (
        f"{words}, where {' and '.join(asked)}: not the truth yet, so distances from it say little; "
        "give it more steps (truth_steps, --truth-steps)"
    )


def distances(found: Predictive, truth: Predictive) -> dict[str, float]:
    """How far a prediction is from the truth's, by the columns of `columns`."""
    if found._kind == "numbers":
        here, there = found.std, truth.std
        apart = {"total_variation": float(density_distance(found, truth))}
    else:
        here, there = _spread(found), _spread(truth)
        apart = {
            "agreement": float(metrics.agreement(found.probs, truth.probs)),
            "total_variation": float(metrics.total_variation(found.probs, truth.probs)),
        }
    return {**apart, "spread": float((here - there).abs().mean() / there.mean())}


def own_distances(truth: Truth, x: Tensor) -> dict[str, float]:
    """What the truth's chains differ by among themselves: one half of them from the other, which no method need beat."""
    from ..core.posteriors.mixture import mixture

    chains = truth.posterior.components
    halves = [mixture(part).predict(x, num_samples=DRAWS) for part in (chains[::2], chains[1::2])]
    return distances(*halves)


def _spread(predictive: Predictive) -> Tensor:
    """Standard deviation over draws of the class probabilities."""
    apart = (predictive._draw_means - predictive._drawn_mean) ** 2
    return predictive._average(apart).sqrt()


def density_distance(found: Predictive, truth: Predictive) -> Tensor:
    """½ ∫ |p − q| dy of each example's predicted number, averaged; outputs of several numbers are taken one by one."""
    reach = REACH * torch.maximum(found.std, truth.std) + (found.mean - truth.mean).abs()
    places = torch.linspace(-1.0, 1.0, GRID, dtype=reach.dtype, device=reach.device)
    # Differences of distribution functions over cells: exact where a density is narrower than a cell, too.
    edges = [truth.mean + reach * place for place in places]
    ours = torch.stack([found.cdf(edge) for edge in edges]).diff(dim=0)
    theirs = torch.stack([truth.cdf(edge) for edge in edges]).diff(dim=0)
    return 0.5 * (ours - theirs).abs().sum(0).mean()


def words_of(truth: Truth, apart: dict[str, float]) -> tuple[str, ...]:
    """What a reader should know of the truth."""
    parts = [f"TV {apart['total_variation']:.3f}", f"sd gap {apart['spread']:.2f}"]
    if not math.isnan(apart.get("agreement", math.nan)):
        parts.insert(0, f"agreement {apart['agreement']:.1%}")
    return (
        f"truth: {truth.verdict}",
        f"two halves of the truth's chains differ by {', '.join(parts)}: nothing can be known to be closer than that",
    )
