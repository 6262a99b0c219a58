"""Noisy K-FAC: variational inference by noisy natural gradients (Zhang et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core.method import require
from ...core.posteriors import Kronecker
from ...weights.algebra import Weights, add_, scale_
from ...weights.rng import Keys
from .kronecker_method import KroneckerMethod
from .kronecker_preconditioner import Factors, deviations, roots


@dataclass(frozen=True, kw_only=True)
class NoisyKFAC(KroneckerMethod):
    """K-FAC whose gradients and curvature are taken at draws from its own Gaussian.

        w ~ q = N(μ, (G ⊗ A + prior)⁻¹),   ĝ = mean of ∇ log p(w, D) over the draws,   μ ← μ + η (Λ + N γ I)⁻¹ ĝ

    With factors that do not change, μ settles where E_q[∇ log p(w, D)] = 0, whatever γ is. The paper's λ is 1 and its η
    the prior's variance: its intrinsic damping is the prior's part of Λ, exact here where the paper splits it between
    the factors (except in wide layers, while training). For a λ below 1, which deep networks may need so that draws are
    not too wide, give the model `temperature=λ` and a prior with 1/λ times the variance. The prior's part of ĝ is taken
    at μ. The first look at the curvature is at μ, too.

    See `KroneckerMethod` for the other arguments.

    Args:
        num_samples: Draws a step.
    """

    num_samples: int = 1

    def __post_init__(self):
        super().__post_init__()
        count = self.num_samples
        require(isinstance(count, int) and count >= 1, f"num_samples must be a positive integer, got {count}")

    def _metric(self, model: Any, factors: Factors, prior: Mapping[str, Any], like: Weights) -> dict[str, Any]:
        """And the roots, without damping, that draws are made with."""
        return {**super()._metric(model, factors, prior, like), "spread": roots(factors, prior, like)}

    def probe(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """The mean curvature at draws."""
        return self._looked(model, state, batch, list(self._drawn(state, rng)), rng)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One natural gradient, by the mean of the draws' slopes."""
        log_joint: Any = 0.0
        slope: Weights = {}
        for draw in self._drawn(state, rng):
            value, own = model.slope(draw, batch)
            # The prior's pull is known everywhere; at the draw it would only be noisier.
            add_(own, model.prior_slope(draw), -1.0)
            log_joint, slope = log_joint + value, add_(slope, own) if slope else own
        add_(scale_(slope, 1 / self.num_samples), model.prior_slope(state["params"]))
        self._climb_(model, state, slope, rng)
        return state, {"log_joint": log_joint / self.num_samples}

    def _drawn(self, state: dict[str, Any], rng: Keys) -> Iterator[Weights]:
        """Draws from q; before any curvature is known, its mean."""
        known = (state["looks"] > 0).to(next(iter(state["params"].values())).dtype)
        for _ in range(self.num_samples):
            away = deviations(state["spread"], rng.normal_like(state["params"]))
            yield {k: w + known * away[k] for k, w in state["params"].items()}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Kronecker:
        """q."""
        return self._gaussian(model, state)
