"""The time that a record of limited length would show, and how good a forecast of it is.

A time T is recorded as min(T, 9). What a network says beyond the end of the record is not held to anything by data, so all
moments here are of what is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import plausible as pl

from ..core.likelihoods.distributions import TruncatedNormal
from ..core.predictive import Predictive
from ..metrics import auroc_ood
from .planet_series_scores import coverage

SHORTEST, LONGEST = 4.0, 9.0  # log10 of the orbits that features are made from, and of the length of the integrations
FAR = -300.0  # deviations; further out the part above SHORTEST is exponential, and only scale / deviations matters


def time_likelihood() -> pl.likelihoods.CensoredNormal:
    """Nothing is recorded below 10⁴ orbits, and what outlived 10⁹ is known to be beyond it."""
    return pl.likelihoods.CensoredNormal(scale=None, upper=LONGEST, truncate_below=SHORTEST)


def recorded_moments(law: TruncatedNormal) -> tuple[Tensor, Tensor]:
    """Mean and variance of min(T, LONGEST), where T is normal and above SHORTEST.

    With α and β the deviations from SHORTEST and from LONGEST up to the normal's centre, G and H integrals of Φ(z) and z Φ(z),

        E[T' - 4] = s (G(α) - G(β)) / Φ(α),    E[(T' - 4)²] = 2 s² (α (G(α) - G(β)) - (H(α) - H(β))) / Φ(α).
    """
    loc, scale = law.loc.double(), law.scale.double()
    alpha = (loc - SHORTEST) / scale
    scale = scale * (FAR / alpha.clamp(max=FAR)).clamp(max=1.0)
    alpha = alpha.clamp(min=FAR)
    beta = alpha - (LONGEST - SHORTEST) / scale
    # Of a centre below SHORTEST all is divided by φ(α), which may be too small for a number.
    below = alpha < 0
    high = _plain(alpha.clamp(min=0.0), beta.masked_fill(below, 0.0))
    low = _scaled(alpha.clamp(max=0.0), beta.masked_fill(~below, 0.0))
    first, moment = (torch.where(below, a, b) for a, b in zip(low, high, strict=True))
    mean = scale * first
    variance = 2 * scale**2 * (alpha * first - moment) - mean**2
    return SHORTEST + mean, variance.clamp(min=0.0)


def _plain(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(G(α) - G(β)) / Φ(α) and (H(α) - H(β)) / Φ(α): G is z Φ(z) + φ(z), and 2 H is (z² - 1) Φ(z) + z φ(z)."""

    def integral(z: Tensor) -> Tensor:
        return z * torch.special.ndtr(z) + _density(z)

    def moment(z: Tensor) -> Tensor:
        return 0.5 * ((z * z - 1) * torch.special.ndtr(z) + z * _density(z))

    inside = torch.special.ndtr(alpha)
    return (integral(alpha) - integral(beta)) / inside, (moment(alpha) - moment(beta)) / inside


def _scaled(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The same for β < α ≤ 0, by Φ(z) / φ(z)."""

    def ratio(z: Tensor) -> Tensor:
        return math.sqrt(math.pi / 2) * torch.special.erfcx(-z * math.sqrt(0.5))

    def integral(z: Tensor) -> Tensor:
        return 1 + z * ratio(z)

    def moment(z: Tensor) -> Tensor:
        return 0.5 * ((z * z - 1) * ratio(z) + z)

    beta = torch.minimum(beta, alpha)
    share = torch.exp(0.5 * (alpha - beta) * (alpha + beta))  # φ(β) / φ(α)
    inside = ratio(alpha)
    return (
        (integral(alpha) - share * integral(beta)) / inside,
        (moment(alpha) - share * moment(beta)) / inside,
    )


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is said of N systems.

    Attributes:
        predictive: Of their times.
        estimate: A single number for each recorded time; the predictive's mean if None.
        stability: Higher for systems that are more likely to outlive the record; the predictive's probability if None.
    """

    predictive: Predictive
    estimate: Tensor | None = None
    stability: Tensor | None = None

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """(S, N) mean and variance of the recorded time by every draw."""
        mean, variance = recorded_moments(self.predictive.likelihood.distribution(self.predictive.outputs.double()))
        return mean[..., 0], variance[..., 0]

    @cached_property
    def expected(self) -> Tensor:
        """(N,), the expected recorded time."""
        return self._average(self.moments[0])

    @cached_property
    def aleatoric(self) -> Tensor:
        """(N,), the variance that draws expect of the recorded time."""
        return self._average(self.moments[1])

    @cached_property
    def epistemic(self) -> Tensor:
        """(N,), the variance of what draws expect."""
        return self._average((self.moments[0] - self.expected).square())

    @cached_property
    def disagreement(self) -> Tensor:
        """(N,), the standard deviation of the draws' normal laws' centres, which no end of a record cuts off."""
        centre = self.predictive.likelihood.distribution(self.predictive.outputs.double()).loc[..., 0]
        return self._average((centre - self._average(centre)).square()).sqrt()

    @cached_property
    def survival(self) -> Tensor:
        """(N,), the probability of outliving the record."""
        law = self.predictive.likelihood.distribution(self.predictive.outputs.double())
        return self._average(1 - law.cdf(torch.full_like(law.loc, LONGEST))[..., 0])

    def below(self, log10_time: Tensor) -> Tensor:
        """(N,), the probability of lying below these times."""
        law = self.predictive.likelihood.distribution(self.predictive.outputs.double())
        return self._average(law.cdf(log10_time.double()[:, None].expand_as(law.loc))[..., 0])

    def quantile(self, q: float) -> Tensor:
        """(N,), of the recorded time, by bisection."""
        low, high = torch.full_like(self.expected, SHORTEST), torch.full_like(self.expected, LONGEST)
        for _ in range(25):
            middle = (low + high) / 2
            early = self.below(middle) < q
            low, high = torch.where(early, middle, low), torch.where(early, high, middle)
        return high

    def _average(self, values: Tensor) -> Tensor:
        return torch.tensordot(self.predictive.weights.double(), values, dims=1)


def forecast_scores(forecast: Forecast, log10_time: Tensor) -> dict[str, float]:
    """Scores against recorded times (N,), `LONGEST` where a system outlived the record.

    Returns:
        rmse and bias of the estimate, where the time is known; auc of telling who outlives the record; nll, censored;
        cover68 and cover95, see `planet_series_scores.coverage`; aleatoric and epistemic, root mean squares over systems.
    """
    truth = log10_time.double()
    lives = truth >= LONGEST
    estimate = forecast.expected if forecast.estimate is None else forecast.estimate.double()
    stability = forecast.survival if forecast.stability is None else forecast.stability.double()
    error, below = (estimate - truth)[~lives], forecast.below(truth)
    both = 0 < int(lives.sum()) < len(lives)
    return {
        "rmse": float(error.square().mean().sqrt()),
        "bias": float(error.mean()),
        "auc": float(auroc_ood(stability[~lives], stability[lives])) if both else 0.5,
        "nll": float(-forecast.predictive.log_prob(truth[:, None].to(forecast.predictive.outputs)).double().mean()),
        "cover68": coverage(below, lives, 0.68),
        "cover95": coverage(below, lives, 0.95),
        "aleatoric": float(forecast.aleatoric.mean().sqrt()),
        "epistemic": float(forecast.epistemic.mean().sqrt()),
    }


def observed_coverage(forecast: Forecast, log10_time: Tensor, levels: list[float]) -> list[float]:
    """The share of recorded times inside the central interval of each level."""
    below = forecast.below(log10_time)
    return [coverage(below, log10_time >= LONGEST, level) for level in levels]


def spread_by_time(forecast: Forecast, log10_time: Tensor, shadow: Tensor, *, bins: int = 8) -> dict[str, Any]:
    """What is expected to be chance beside what chaos does, for equal parts of the systems by their expected time.

    Chaos is half the mean squared difference of a system's recorded time and its shadow's, the root of it.
    """
    groups = forecast.expected.argsort().tensor_split(bins)
    chaos = (log10_time - shadow.clamp(SHORTEST, LONGEST)).double().square() / 2

    def roots(values: Tensor) -> list[float]:
        return [round(float(values[group].mean().sqrt()), 4) for group in groups]

    return {
        "expected": [round(float(forecast.expected[group].mean()), 4) for group in groups],
        "aleatoric": roots(forecast.aleatoric),
        "epistemic": roots(forecast.epistemic),
        "chaos": roots(chaos),
    }
