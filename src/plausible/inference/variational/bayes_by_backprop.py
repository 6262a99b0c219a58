"""Bayes by backprop (Blundell et al., 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.method import Method, Sweep, require
from ...core.model import BayesianModel
from ...core.posteriors import Diagonal
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Weights, scale_, to_vector
from ...weights.rng import Keys
from ..point.map import MAP
from .convergence import judged
from .elbo import examine, is_density
from .families import make_family
from .mean_field import MeanField, deviations, entropy, joined

ADAM = MAP()  # its moments and its update; the rate is this method's own
ESTIMATORS = ("local", "flipout", "weights")
OUTPUT_NOISE = 0.1  # that a layer's weights add to outputs of inputs of size one, where initial_scale is None
WINDOWS = 20  # over which the bound is averaged, to see whether it still rises


@dataclass(frozen=True, kw_only=True)
class BayesByBackprop(Method):
    """Fit independent normals to the posterior by following the gradient of the evidence lower bound.

        q = N(μ, σ²),  σ = log(1 + exp ρ)
        L = E_q[log p(D | w)] − KL(q ‖ p)

    Adam follows L / N in (μ, ρ). The paper estimates all of L by draws w = μ + σ ε; here the KL from a normal prior is its
    formula, and other priors (the paper's is `pl.priors.ScaleMixture`) are drawn. How the likelihood's part is drawn is a
    choice: all three have the same expectation, and the first varies least.

    local:    Kingma et al. (2015). A linear layer's outputs are drawn, √(x² σ²ᵀ) ε around x μᵀ, apart for every example. Where
              a weight meets several positions of an example, as in a convolution, it is "flipout".
    flipout:  Wen et al. (2018). One draw of the weights a step, with random signs for every example.
    weights:  The paper's. One draw of the weights a step.

    The first two are for weights that one linear layer or convolution uses once; any others are drawn as weights.

    Args:
        num_samples: Draws a step.
        learning_rate: Adam's, at its highest.
        estimator: "local", "flipout" or "weights".
        schedule: Of the learning rate, as for `pl.MAP`.
        initial_scale: σ at the start; None: such that each layer's outputs vary by a tenth of its inputs' size.
    """

    post_hoc: ClassVar[bool] = True

    num_samples: int = 1
    learning_rate: float = 1e-3
    estimator: str = "local"
    schedule: Any = "cosine"
    initial_scale: float | None = None

    def __post_init__(self):
        require(
            isinstance(self.num_samples, int) and self.num_samples >= 1,
            f"num_samples must be a positive integer, got {self.num_samples}",
        )
        require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        require(
            self.initial_scale is None or self.initial_scale > 0,
            f"initial_scale must be positive, got {self.initial_scale}",
        )
        if self.estimator not in ESTIMATORS:
            raise NotSupported(f'estimator must be "local", "flipout" or "weights", got {self.estimator!r}')
        find_schedule(self.schedule)

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """Means at the start, small deviations, and Adam's moments of both."""
        rho = {k: torch.zeros_like(w) + self._initial_rho(w) for k, w in params.items()}
        zeros = lambda: {k: torch.zeros_like(w) for k, w in joined(params, rho).items()}  # noqa: E731
        total = torch.zeros((), dtype=torch.float64, device=next(iter(params.values())).device)
        window = {"sum": total, "means": total.new_zeros(WINDOWS)}
        return {"params": params, "rho": rho, "first": zeros(), "second": zeros(), "window": window}

    def _initial_rho(self, w: Tensor) -> Tensor | float:
        scale = self.initial_scale
        if scale is None:
            scale = OUTPUT_NOISE / math.sqrt(max(1, math.prod(w.shape[1:])))
        return torch.log(torch.expm1(scale)) if isinstance(scale, Tensor) else math.log(math.expm1(scale))

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One step up the bound."""
        both = joined(state["params"], state["rho"])
        bound = MeanField(model, self.estimator, self.num_samples).bound(rng=rng)
        elbo, gradient = bound.slope(both, batch)
        log_joint = elbo - entropy(deviations(state["rho"]))
        rate = self.learning_rate * find_schedule(self.schedule)(rng.step.double() / model.num_steps)
        moments = {"params": both, "first": state["first"], "second": state["second"]}
        ADAM._adam(model, moments, scale_(gradient, 1.0 / model.num_data), rate, rng.step.double() + 1)
        state["window"]["sum"] += elbo
        return state, {"log_joint": log_joint, "elbo": elbo}

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """The ends of windows of about equal length."""
        count = min(WINDOWS, num_steps)
        return [(w + 1) * num_steps // count - 1 for w in range(count)]

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """Note a window's mean bound; the oldest makes room."""
        ends = [-1, *self.adapted_steps(model.num_steps)]
        steps = step - ends[ends.index(step) - 1]
        total, means = state["window"]["sum"], state["window"]["means"]
        means = torch.cat([means[1:], (total / steps).unsqueeze(0)])
        return {**state, "window": {"sum": torch.zeros_like(total), "means": means}}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Diagonal:
        """q."""
        return Diagonal(model, state["params"], deviations(state["rho"]))

    def survey(self, model: Any, state: dict[str, Any], sweep: Sweep, validation: Sweep | None) -> Diagonal:
        """q, with its bound on the evidence and what speaks against it, from draws that see all data."""
        plain = model.bound(buffers=None) if isinstance(model, BayesianModel) else model
        answer = self.posterior(plain, state, None)
        spread = {"log_scale": to_vector(answer.scale).log()}
        found = examine(model, make_family("diagonal", 1), state["params"], spread, sweep)
        if getattr(model, "temperature", 1.0) == 1.0 and is_density(model):
            answer._evidence = found.evidence()
        windows = len(self.adapted_steps(model.num_steps))
        answer._diagnostics = judged(plain, answer, found, state["window"]["means"][WINDOWS - windows :])
        return answer
