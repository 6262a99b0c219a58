"""How a method's answer changes along its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from ..core.method import Method
from ..core.posteriors import Delta, Mixture
from ..weights import tree
from ..weights.algebra import Weights
from ..weights.rng import Keys


@dataclass(frozen=True, kw_only=True)
class Snapshots(Method):
    """Another method, and its answers at evenly spaced moments of its run.

    Args:
        base: What runs.
        count: How many moments; the last is the end.
        at_mean: Whether answers are the base's weights alone, as of an optimiser. What else it would make of its state, such
            as eigenvectors, is then never made.
    """

    base: Method
    count: int
    at_mean: bool = False

    @property
    def is_point(self) -> bool:  # type: ignore[override]
        """The base's."""
        return self.base.is_point

    @property
    def compiles(self) -> bool:
        """The base's."""
        return self.base.compiles

    def resolved(self, model: Any, num_steps: int) -> Self:
        """With the base resolved."""
        return replace(self, base=self.base.resolved(model, num_steps))

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's."""
        return self.base.init(model, params)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's."""
        return self.base.step(model, state, batch, rng)

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """The base's."""
        return self.base.adapted_steps(num_steps)

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """The base's."""
        return self.base.adapt(model, state, step)

    def probed_steps(self, num_steps: int) -> Sequence[int]:
        """The base's."""
        return self.base.probed_steps(num_steps)

    def probe(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """The base's."""
        return self.base.probe(model, state, batch, rng)

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """The ends of equal parts of the run."""
        return sorted({round((part + 1) * num_steps / self.count) - 1 for part in range(self.count)})

    def keep(self, model: Any, state: dict[str, Any]) -> dict[str, Any]:
        """All that the answer is made of."""
        return {"params": state["params"]} if self.at_mean else state

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Mixture:
        """The answers in their order, as the components of a mixture."""
        here = next(iter(state["params"].values())).device  # many moments wait in files on the host
        moments = [tree.to(tree.unstack(draws, k), here) for k in range(tree.leading_axis(draws))]
        if self.at_mean:
            return Mixture([Delta(model, at["params"]) for at in moments])
        return Mixture([self.base.posterior(model, at, None) for at in moments])
