"""A posterior known by draws from it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ...weights import tree
from ...weights.algebra import Weights
from ...weights.rng import generator
from ..arviz import to_arviz
from ..collapse import with_collapsed_scales
from ..diagnostics import Diagnostics, of_chains, together
from ..target import Target
from .posterior import Posterior, Stratum


class Samples(Posterior):
    """K stored draws of equal weight, in the order a chain made them.

    Args:
        model: Whose unknowns they are.
        draws: Tensors with a leading axis K.
        statistics: What a sampler noted beside each draw (log joint, acceptance, ...), each of length K.
    """

    finite = True
    runs_on: torch.device | None = None  # where draws that lie in a file on the host are moved when they are used

    def __init__(self, model: Target, draws: Weights, statistics: Mapping[str, Tensor] | None = None):
        self.model, self.draws, self.statistics = model, draws, dict(statistics or {})
        if tree.leading_axis(draws) == 0:
            raise ValueError("no draw was kept; run more steps, or a shorter warm-up or burn-in")

    @property
    def device(self) -> torch.device:
        """Where its draws are used."""
        return self.runs_on or super().device

    def __len__(self) -> int:
        return tree.leading_axis(self.draws)

    @property
    def tensors(self) -> dict[str, Any]:
        """The draws and what was noted of them."""
        return {"draws": self.draws, **({"statistics": self.statistics} if self.statistics else {})}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        return cls(model, tensors["draws"], tensors.get("statistics"))

    @property
    def mean(self) -> Weights:
        """The average of the stored draws."""
        return {k: w.mean(0).to(self.device) for k, w in self.draws.items()}

    def sample(self, n: int, seed: int | None = None) -> Weights:
        """n stored draws, picked at random with replacement."""
        if seed is None:
            picks = torch.randint(len(self), (n,), generator=torch.Generator().manual_seed(secrets.randbits(63)))
        else:
            picks = torch.randint(len(self), (n,), generator=generator(seed, 0x73616D706C65))
        return {k: w[picks.to(w.device)].to(self.device) for k, w in self.draws.items()}

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """The stored draws at `indices`."""
        picks = torch.as_tensor(list(indices))
        return {k: w[picks.to(w.device)].to(self.device) for k, w in self.draws.items()}

    def strata(self, num_samples: int, seed: int) -> list[Stratum]:
        """All draws if there are no more than asked for, else that many, spread evenly along the chain."""
        count = min(num_samples, len(self))
        picks = [int((i + 0.5) * len(self) / count) for i in range(count)]
        return [Stratum(self, picks, 1.0 / count, seed, exact=False)]

    def diagnostics(self, x: Any = None) -> Diagnostics:
        """R-hat and effective sample sizes of the one chain; with inputs x, of what it predicts there."""
        found = of_chains([self], x)
        return with_collapsed_scales(self, together(found, self._diagnostics) or found)

    def to_arviz(self) -> Any:
        """The chain as ArviZ's `InferenceData` (`pip install plausible[arviz]`)."""
        return to_arviz([self])
