"""Cyclical stochastic gradient MCMC (Zhang, Li, Zhang, Chen & Wilson, 2020)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.method import Method, require
from ...core.posteriors import Samples
from ...weights.algebra import Weights
from ...weights.rng import Keys
from .kept_draws import DRAW_BUDGET
from .sghmc import SGHMC
from .sgld import SGLD
from .stochastic_gradient import StochasticGradientSampler

log = logging.getLogger("plausible")


@dataclass(frozen=True, kw_only=True)
class CyclicalSGMCMC(Method):
    """Restart a sampler's step size again and again: large steps find another mode, small ones sample it.

    With r the share of the present cycle that is over, the learning rate is ½ (1 + cos π r) times the base's: ε of SGLD, h² of
    SGHMC, whose momentum 1 − D h stays. While r < exploration no noise is put in; after that the sampler runs, and its draws are
    kept at steps spread evenly to the end of the cycle.

    Args:
        base: An `SGLD` or an `SGHMC`; its step size is that at the start of a cycle.
        cycles: How many.
        exploration: Share of a cycle without noise and without draws.
        samples_per_cycle: Draws that are kept of each cycle.
    """

    base: StochasticGradientSampler = SGHMC()
    cycles: int = 4
    exploration: float = 0.75
    samples_per_cycle: int = 3

    def __post_init__(self):
        base = self.base
        require(isinstance(base, SGLD | SGHMC), f"base must be a pl.SGLD or a pl.SGHMC, got {base!r}")
        require(
            base.burn_in is None and base.thin == 1 and getattr(base, "schedule", "constant") == "constant",
            "cycles say when draws are kept and how long steps are, so base must not have burn_in, thin or schedule; leave "
            f"them out of {base}",
        )
        cycles, samples = self.cycles, self.samples_per_cycle
        require(isinstance(cycles, int) and cycles >= 1, f"cycles must be a positive integer, got {cycles}")
        require(0 <= self.exploration < 1, f"exploration must be a share of a cycle in [0, 1), got {self.exploration}")
        require(
            isinstance(samples, int) and samples >= 1, f"samples_per_cycle must be a positive integer, got {samples}"
        )

    def resolved(self, model: Any, num_steps: int) -> Self:
        """The base's numbers, for as many steps as a cycle has."""
        bytes_each = sum(w.numel() * w.element_size() for w in model.start.values())
        held = self.cycles * self.samples_per_cycle
        require(
            held == 1 or held * bytes_each <= DRAW_BUDGET,
            f"{held} draws would take {held * bytes_each:,} bytes, more than {DRAW_BUDGET:,}; keep fewer of a cycle",
        )
        found = self._fitting(num_steps) if num_steps else self
        return replace(found, base=self.base.with_step_size(model, num_steps // found.cycles))

    def _fitting(self, num_steps: int) -> Self:
        """The same with as many cycles and draws as a short run has room for."""
        room = lambda cycles: min(map(len, replace(self, cycles=cycles)._phases(num_steps)))  # noqa: E731
        cycles = next((c for c in range(self.cycles, 1, -1) if room(c) >= self.samples_per_cycle), 1)
        draws = min(self.samples_per_cycle, room(cycles))
        require(
            draws > 0,
            f"{num_steps} step{'s are' if num_steps > 1 else ' is'} too few for a cycle of which {self.exploration:g} explores; "
            "run longer, or explore less",
        )
        if (cycles, draws) != (self.cycles, self.samples_per_cycle):
            log.warning(
                "%d steps have room for %d of %d cycles and %d draws of each", num_steps, cycles, self.cycles, draws
            )
        return replace(self, cycles=cycles, samples_per_cycle=draws)

    def _phases(self, num_steps: int) -> list[list[int]]:
        """The sampling steps of every cycle."""
        ends = [math.ceil(c * num_steps / self.cycles) for c in range(self.cycles + 1)]
        cycles = [range(begin, end) for begin, end in zip(ends, ends[1:], strict=False)]
        return [[t for t in cycle if self._position(t, num_steps) >= self.exploration] for cycle in cycles]

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """In every cycle steps spread evenly over its sampling phase, the last one among them."""
        if not num_steps:
            return []
        count = self.samples_per_cycle
        return [
            phase[math.ceil((i + 1) * len(phase) / count) - 1]
            for phase in self._phases(num_steps)
            for i in range(count)
        ]

    def _position(self, step: Any, num_steps: int) -> Any:
        """r of a step, a number or a tensor: in whole numbers first, so that both ways agree to the bit."""
        whole = (step * self.cycles) % num_steps
        return (whole.double() if isinstance(whole, Tensor) else whole) / num_steps

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's."""
        return self.base.init(model, params)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's, at the cycle's rate and heat."""
        r = self._position(rng.step, model.num_steps)
        multiple = 0.5 * (1 + torch.cos(math.pi * r))
        heat = (r >= self.exploration).to(torch.float64)
        return self.base.moved(model, state, batch, rng, multiple, heat)

    @property
    def fixed_batches(self) -> bool:
        """The base's."""
        return self.base.fixed_batches

    def swept_steps(self, num_steps: int) -> Sequence[int]:
        """The base's."""
        return self.base.swept_steps(num_steps)

    def gather(self, model: Any, state: dict[str, Any], batch: Any, first: bool) -> dict[str, Any]:
        """The base's."""
        return self.base.gather(model, state, batch, first)

    def keep(self, model: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The base's."""
        return self.base.keep(model, state)

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Samples:
        """The kept draws of all cycles."""
        return self.base.posterior(model, state, draws)
