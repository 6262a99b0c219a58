"""A prediction: the mixture of what every drawn network predicts.

Everything here is of the true mixture over draws: log-mean-exp likelihoods, the law of total variance, quantiles and
CRPS of the mixture's own distribution function. Averaging (mean, scale) pairs instead would hide disagreement.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from ..weights.rng import forked, generator
from .errors import NotSupported
from .mixture_law import crps_by_integration, crps_of_normals, quantile_of
from .unknowns import bind


class Predictive:
    """The posterior predictive distribution at given inputs.

    `outputs` (S, N, ...) has the sample axis first; everything else has none and is in the shape of the targets,
    except class probabilities, which have the classes on axis 1.

    Args:
        outputs: The network's outputs for every draw.
        likelihood: How targets scatter around them.
        weights: The draws' weights; equal if not given.
        unknowns: Natural values of the likelihood's unknowns, one per draw.
        strata: Which component every draw came from, for the Monte Carlo error.
        exact: Whether the draws are all there is (an ensemble), so that nothing is sampled.
        probs: Class probabilities in closed form, which `.probs` and `.mean` give in place of the average over draws.
    """

    def __init__(
        self,
        outputs: Tensor,
        likelihood: Any,
        weights: Tensor | None = None,
        unknowns: Mapping[str, Tensor] | None = None,
        strata: Tensor | None = None,
        exact: bool = False,
        probs: Tensor | None = None,
    ):
        count = outputs.shape[0]
        self._closed_form = probs
        self.outputs, self.likelihood, self.exact = outputs, likelihood, exact
        self.weights = outputs.new_full((count,), 1.0 / count) if weights is None else weights
        self.unknowns = dict(unknowns or {})
        self.strata = torch.zeros(count, dtype=torch.long, device=outputs.device) if strata is None else strata

    # --- one draw's distribution, and averages over draws ---

    def _bound(self, unknowns: Mapping[str, Tensor]) -> Any:
        return bind(self.likelihood, unknowns) if unknowns else self.likelihood

    def _each(self, function: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """function(likelihood of one draw, its outputs) for all draws, stacked."""

        def one(outputs: Tensor, unknowns: Mapping[str, Tensor]) -> Tensor:
            return function(self._bound(unknowns), outputs)

        with _no_validation():
            try:
                return torch.vmap(one, randomness="error")(self.outputs, self.unknowns)
            except (RuntimeError, ValueError, NotImplementedError, TypeError):
                # A distribution that looks at its values cannot be batched: one draw at a time says the real error.
                rows = [one(o, {k: v[i] for k, v in self.unknowns.items()}) for i, o in enumerate(self.outputs)]
                return torch.stack(rows)

    def _average(self, values: Tensor) -> Tensor:
        return torch.tensordot(self.weights.to(values), values, dims=1)

    @cached_property
    def _first(self) -> Distribution:
        with _no_validation():
            return self._bound({k: v[0] for k, v in self.unknowns.items()}).distribution(self.outputs[0])

    @cached_property
    def _kind(self) -> str:
        """What a target is: "classes", "binary" or "numbers"."""
        if isinstance(self._first, Categorical):
            return "classes"
        return "binary" if isinstance(self._first, Bernoulli) else "numbers"

    @cached_property
    def _draw_means(self) -> Tensor:
        if self._kind == "classes":
            return self._each(lambda lik, out: lik.distribution(out).probs.movedim(-1, 1))
        return self._each(lambda lik, out: lik.distribution(out).mean)

    @cached_property
    def _draw_entropies(self) -> Tensor:
        return self._each(lambda lik, out: lik.distribution(out).entropy())

    # --- what is predicted, and how unsure ---

    @cached_property
    def mean(self) -> Tensor:
        """The expected target: class probabilities (N, C, ...), or numbers in the shape of the targets."""
        return self._drawn_mean if self._closed_form is None else self._closed_form

    @cached_property
    def _drawn_mean(self) -> Tensor:
        return self._average(self._draw_means)

    @property
    def probs(self) -> Tensor:
        """Class probabilities."""
        if self._kind == "numbers":
            raise NotSupported(f"{_name(self.likelihood)} predicts numbers, which have .mean and .std, not .probs")
        return self.mean

    @property
    def variance(self) -> Tensor:
        """The variance of the target (of the one-hot label for classes)."""
        return self.total if self._kind == "numbers" else self.mean * (1 - self.mean)

    @property
    def std(self) -> Tensor:
        """The standard deviation of the target."""
        return self.variance.sqrt()

    @cached_property
    def aleatoric(self) -> Tensor:
        """What more data could not remove: the expected variance (numbers) or the expected entropy in nats (classes)."""
        if self._kind == "numbers":
            return self._average(self._each(lambda lik, out: lik.distribution(out).variance))
        return self._average(self._draw_entropies)

    @cached_property
    def epistemic(self) -> Tensor:
        """What more data could remove: the variance of the means, or the mutual information of label and weights."""
        if self._kind == "numbers":
            return self._average((self._draw_means - self.mean) ** 2)
        p = self._drawn_mean  # of the same draws as the expected entropy: information is a difference of the two
        if self._kind == "classes":
            entropy = -torch.xlogy(p, p).sum(1)
        else:
            entropy = -torch.xlogy(p, p) - torch.xlogy(1 - p, 1 - p)
        # Rounding can leave −1e-8 where all draws agree; information is never negative.
        return (entropy - self.aleatoric).clamp(min=0)

    @cached_property
    def total(self) -> Tensor:
        """aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @cached_property
    def mc_error(self) -> Tensor:
        """Standard error of `.mean` from having drawn finitely many weights; zero where all there is was averaged."""
        if self.exact or self._closed_form is not None:
            return torch.zeros_like(self.mean)
        means = self._draw_means
        variance = torch.zeros_like(self.mean)
        for s in self.strata.unique().tolist():
            own = means[self.strata == s]
            share = self.weights[self.strata == s].sum()
            # One draw says nothing of its own spread: take that of all draws, which is no smaller on average.
            spread = (
                own.var(0)
                if own.shape[0] > 1
                else means.var(0)
                if means.shape[0] > 1
                else torch.full_like(self.mean, torch.inf)
            )
            variance = variance + share**2 * spread / own.shape[0]
        return variance.sqrt()

    @cached_property
    def expected_error(self) -> Tensor:
        """The share of draws that do not vote for the predicted class."""
        if self._kind == "numbers":
            raise NotSupported(f"{_name(self.likelihood)} has no classes to vote for; .epistemic says how draws differ")
        if self._kind == "binary":
            return self._average(((self._draw_means > 0.5) != (self.mean > 0.5)).to(self.mean))
        return self._average((self._draw_means.argmax(2) != self.mean.argmax(1)).to(self.mean))

    # --- of the mixture's own law ---

    def log_prob(self, y: Any) -> Tensor:
        """log p(yᵢ) under the mixture, one per example, joint over an example's outputs."""
        y = torch.as_tensor(y, device=self.outputs.device)
        parts = self._each(lambda lik, out: lik.log_prob(out, y))
        return torch.logsumexp(parts + self.weights.to(parts).log().unsqueeze(-1), 0)

    def cdf(self, y: Any) -> Tensor:
        """P(target ≤ y), elementwise."""
        self._require_numbers("a cdf")
        y = torch.as_tensor(y, dtype=self.mean.dtype, device=self.outputs.device)
        return self._average(self._each(lambda lik, out: lik.distribution(out).cdf(y)))

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """The value below which the target falls with probability q; several q give a leading axis."""
        self._require_numbers("quantiles")
        if not isinstance(q, float | int):
            return torch.stack([self.quantile(float(level)) for level in q])
        if not 0 < q < 1:
            raise ValueError(f"q must lie strictly between 0 and 1, got {q}")
        return quantile_of(self.cdf, float(q), self.mean, self.std, discrete=self._discrete)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def crps(self, y: Any) -> Tensor:
        """Continuous ranked probability score of the mixture, elementwise; smaller is better."""
        self._require_numbers("a CRPS")
        y = torch.as_tensor(y, dtype=self.mean.dtype, device=self.outputs.device)
        if y.shape != self.mean.shape:
            raise ValueError(f"targets must have the shape of the mean {tuple(self.mean.shape)}, got {tuple(y.shape)}")
        if type(self._first) is Normal:
            scales = self._each(lambda lik, out: lik.distribution(out).stddev)
            return crps_of_normals(self._draw_means, scales, self.weights.to(y), y)
        return crps_by_integration(self.cdf, self.quantile, y, discrete=self._discrete)

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """n draws of all targets, each from one drawn network, so that they are jointly what the posterior predicts."""
        seed = secrets.randbits(63) if seed is None else seed
        picks = torch.multinomial(self.weights.cpu().double(), n, replacement=True, generator=generator(seed))
        rows = []
        with _no_validation(), forked(seed, 1, devices=[self.outputs.device]):
            for i in picks.tolist():
                likelihood = self._bound({k: v[i] for k, v in self.unknowns.items()})
                rows.append(likelihood.distribution(self.outputs[i]).sample())
        return torch.stack(rows)

    @property
    def _discrete(self) -> bool:
        return bool(getattr(self._first.support, "is_discrete", False))

    def _require_numbers(self, what: str) -> None:
        if self._kind != "numbers":
            raise NotSupported(
                f"{_name(self.likelihood)} predicts labels, which have no {what.removeprefix('a ')}; see .probs"
            )

    def __len__(self) -> int:
        return self.outputs.shape[1]

    def __repr__(self) -> str:
        draws, examples = self.outputs.shape[:2]
        return f"Predictive({examples} inputs, {draws} draws, {_name(self.likelihood)})"


def _name(likelihood: Any) -> str:
    return type(likelihood).__name__


@contextmanager
def _no_validation() -> Iterator[None]:
    """torch's distributions read their arguments back to check them, which neither vmap nor speed survives."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
