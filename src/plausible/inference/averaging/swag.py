"""Stochastic weight averaging, Gaussian (Maddox et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import LowRank
from ...core.schedules import SWAGSchedule
from ...weights.algebra import Weights, add_
from ...weights.rng import Keys
from ..point.map import MAP

FINAL_SHARE = 0.4  # of the base's learning rate, for swag_learning_rate=None: the paper's 0.02 beside 0.05


@dataclass(frozen=True, kw_only=True)
class SWAG(Method):
    """A Gaussian around the average of a run's last weights.

    After `start` of the run the learning rate stays at `swag_learning_rate` and T snapshots w₁ ... w_T are taken. With
    mean w̄ and D's columns the deviations,

        q = N(w̄, scale · ½ [ D Dᵀ / (K − 1) + diag(1/T Σ (wₜ − w̄)²) ]).

    D holds the last K = rank deviations from the running mean, as published. Where rank ≥ T − 1 all fit, and they are
    rescaled by √(t / (t − 1)) (Welford's identity), so that D Dᵀ / (T − 1) is the snapshots' sample covariance exactly.

    Args:
        rank: K.
        start: Share of the run before the first snapshot.
        snapshots: T, spread evenly over the rest of the run.
        swag_learning_rate: The rate while snapshots are taken.
        scale: Multiplies the covariance.
        base: What runs; its schedule is replaced by SWAG's.
    """

    is_point: ClassVar[bool] = True

    rank: int = 20
    start: float = 0.75
    snapshots: int | None = None
    swag_learning_rate: float | None = None
    scale: float = 1.0
    base: MAP = MAP(optimizer="sgd", learning_rate=0.05)

    def __post_init__(self):
        require(isinstance(self.rank, int) and self.rank >= 1, f"rank must be a positive integer, got {self.rank}")
        require(0 <= self.start < 1, f"start must be a share of the run in [0, 1), got {self.start}")
        require(self.snapshots is None or self.snapshots >= 2, f"snapshots must be at least 2, got {self.snapshots}")
        require(self.scale >= 0, f"scale must not be negative, got {self.scale}")
        require(isinstance(self.base, MAP), f"base must be a pl.MAP, got {self.base!r}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Number of snapshots and the schedule."""
        rate = self.swag_learning_rate if self.swag_learning_rate is not None else FINAL_SHARE * self.base.learning_rate
        final = rate / self.base.learning_rate
        first = SWAGSchedule(start=self.start, final=final) if self.start > 0 else SWAGSchedule(start=1e-9, final=final)
        left = num_steps - int(self.start * num_steps)
        snapshots = self.snapshots or max(2, min(left, 2 * self.rank))
        require(
            num_steps == 0 or snapshots <= left,
            f"{snapshots} snapshots do not fit into the last {left} steps; run longer",
        )
        return replace(self, snapshots=snapshots, swag_learning_rate=rate, base=replace(self.base, schedule=first))

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """T steps, evenly spread after `start`, the last step among them."""
        begin, count = int(self.start * num_steps), self.snapshots or 0  # `resolved` has made it a number
        return [begin + math.ceil((t + 1) * (num_steps - begin) / count) - 1 for t in range(count)] if num_steps else []

    def capacity(self, num_steps: int) -> int:
        """K columns."""
        return self.rank

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's state, the running mean, the running sum of squares about it, and the count."""
        zeros = lambda: {k: torch.zeros_like(w) for k, w in params.items()}  # noqa: E731
        like = next(iter(params.values()))
        count = torch.zeros((), dtype=like.dtype, device=like.device)
        return {**self.base.init(model, params), "mean": zeros(), "squares": zeros(), "count": count}

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's step."""
        return self.base.step(model, state, batch, rng)

    def keep(self, model: Any, state: dict[str, Any]) -> Weights:
        """Take a snapshot: move the running averages (Welford) and return the deviation from the new mean."""
        state["count"] += 1
        before = {k: w - state["mean"][k] for k, w in state["params"].items()}
        add_(state["mean"], before, 1.0 / state["count"])
        after = {k: w - state["mean"][k] for k, w in state["params"].items()}
        add_(state["squares"], {k: before[k] * after[k] for k in before})
        return after

    def posterior(self, model: Any, state: dict[str, Any], draws: Weights | None) -> LowRank:
        """The Gaussian."""
        count = int(state["count"])
        if count < 2 or draws is None:
            raise ValueError(f"SWAG needs at least 2 snapshots, took {count}; run more steps")
        # From the host, perhaps, where snapshots beyond the memory budget lie in files.
        columns = {k: d[-min(count - 1, self.rank) :].to(state["mean"][k].device) for k, d in draws.items()}
        held = next(iter(columns.values())).shape[0]
        if held == count - 1:
            stretch = torch.tensor([math.sqrt(t / (t - 1)) for t in range(2, count + 1)], dtype=torch.float64)
            columns = {k: d * stretch.to(d).reshape(-1, *[1] * (d.dim() - 1)) for k, d in columns.items()}
            divisor = count - 1
        else:
            divisor = max(1, held - 1)
        half = 0.5 * self.scale
        factors = {k: d * math.sqrt(half / divisor) for k, d in columns.items()}
        variance = {k: s * (half / count) for k, s in state["squares"].items()}
        return LowRank(model, state["mean"], variance, factors)
