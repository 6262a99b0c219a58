"""Kronecker-factored approximate curvature (Martens & Grosse, 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ...core.posteriors import Kronecker
from ...weights.rng import Keys
from . import trust
from .kronecker_method import KroneckerMethod

# For trust=None: nats per example of all steps of a run, and the least of one. With 1e-2 whatever the run's length, eight
# layers without norms fall to chance on digits, with 1e-3 if looks are 100 steps apart.
CHANGED, LEAST_TRUST = 0.1, 1e-4


@dataclass(frozen=True, kw_only=True)
class KFAC(KroneckerMethod):
    """Climb to the highest point w* of the log joint by natural gradients, and keep their metric as the posterior.

        q = N(w*, (G ⊗ A + prior)⁻¹) for every layer, independent normals for weights that no matrix product uses.

    It is what `Laplace(structure="kronecker")` gives, with averages over the last batches for the sums over all data;
    predictions linearise the network at w* likewise. Damping is exact in the eigenbasis of the factors where Martens &
    Grosse split it between them, except in wide layers; rescaling and momentum by a quadratic model are left out.

    See `KroneckerMethod` for the arguments.
    """

    is_point: ClassVar[bool] = True
    tries_draws: ClassVar[bool] = False

    def _least_trust(self, num_steps: int) -> float:
        """Long runs have time for short steps, and need no more."""
        return min(trust.MOST, max(LEAST_TRUST, CHANGED / max(1, num_steps)))

    def probe(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """The curvature at the weights."""
        return self._looked(model, state, batch, [state["params"]], rng)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One natural gradient."""
        log_joint, slope = model.slope(state["params"], batch)
        self._climb_(model, state, slope, rng)
        return state, {"log_joint": log_joint}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Kronecker:
        """The Gaussian, in the network that its curvature is of."""
        answer = self._gaussian(model, state)
        answer.linearised_by_default = True
        return answer
