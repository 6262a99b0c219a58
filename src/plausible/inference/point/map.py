"""The highest point of the log joint, by the optimisers everybody knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.method import Method, require
from ...core.posteriors import Delta
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Weights, add_, add_quotient_, average_, can_fuse, fused_adam_, norm, root, scale_, square
from ...weights.rng import Keys

SECOND_DECAY, EPSILON = 0.999, 1e-8  # Adam's own (Kingma & Ba, 2015)


@dataclass(frozen=True, kw_only=True)
class MAP(Method):
    """Climb log p(w, D) / N, so that a learning rate means what it means in any PyTorch loop.

    adam:   m ← β m + (1 − β) g,  v ← β₂ v + (1 − β₂) g²,  w ← w + η m̂ / (√v̂ + ε)
    adamw:  the same with m and v of the likelihood's gradient alone; the prior's pull goes around them but through the
            same metric, w ← w + η (m̂ + p) / (√(v̂ + p²) + ε) with p = ∇ log p(w) / N, where p² keeps the step of a weight
            that the data never move below η. Loshchilov & Hutter's update leaves the metric out, which moves the optimum;
            here it is the highest point of the log joint for all three.
    sgd:    m ← β m + g,  w ← w + η m

    Args:
        optimizer: "adam", "adamw" or "sgd".
        learning_rate: η at its highest.
        momentum: β.
        schedule: "constant", "cosine", "one-cycle", "step", "warm-up", or a function of progress in [0, 1).
        clip_norm: Largest norm of the gradient of log p(w, D) / N; longer ones are shortened to it.
    """

    is_point: ClassVar[bool] = True

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    schedule: Any = "cosine"
    clip_norm: float | None = None

    def __post_init__(self):
        if self.optimizer not in ("adam", "adamw", "sgd"):
            raise NotSupported(f'optimizer must be "adam", "adamw" or "sgd", got {self.optimizer!r}')
        require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        require(self.clip_norm is None or self.clip_norm > 0, f"clip_norm must be positive, got {self.clip_norm}")
        find_schedule(self.schedule)

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The point and its moments."""
        state = {"params": params, "first": {k: torch.zeros_like(w) for k, w in params.items()}}
        if self.optimizer != "sgd":
            state["second"] = {k: torch.zeros_like(w) for k, w in params.items()}
        return state

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        log_joint, gradient = model.slope(state["params"], batch)
        gradient = scale_(gradient, 1.0 / model.num_data)
        if self.clip_norm is not None:
            gradient = scale_(gradient, (self.clip_norm / (norm(gradient) + 1e-12)).clamp(max=1.0))
        rate = self.learning_rate * find_schedule(self.schedule)(rng.step.double() / model.num_steps)
        if self.optimizer == "sgd":
            add_(scale_(state["first"], self.momentum), gradient)
            add_(state["params"], state["first"], rate)
        else:
            self._adam(model, state, gradient, rate, rng.step.double() + 1)
        return state, {"log_joint": log_joint}

    def _adam(self, model: Any, state: dict[str, Any], gradient: Weights, rate: Tensor, count: Tensor) -> None:
        pull = None
        if self.optimizer == "adam" and can_fuse(state["params"]) and not isinstance(self.momentum, Tensor):
            fused_adam_(state, gradient, rate, count, self.momentum, SECOND_DECAY, EPSILON)
            return
        if self.optimizer == "adamw":
            pull = scale_(model.prior_slope(state["params"]), 1.0 / model.num_data)
            add_(gradient, pull, -1.0)
        average_(state["first"], gradient, self.momentum)
        average_(state["second"], square(gradient), SECOND_DECAY)
        # 1 − β₂ᵗ by expm1: the difference itself would lose half of a float32's digits in the first steps.
        correction = -torch.expm1(count * math.log(SECOND_DECAY))
        sizes = state["second"] if pull is None else add_(scale_(square(pull), correction), state["second"])
        metric = root(sizes, correction, EPSILON)
        step_size = rate / (1 - self.momentum**count)
        add_quotient_(state["params"], state["first"], metric, step_size)
        if pull is not None:
            add_quotient_(state["params"], pull, metric, rate)

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Delta:
        """The point."""
        return Delta(model, state["params"])
