"""Normal priors of fixed scales, for all weights in a few multi-tensor kernels and no pass to spare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..weights.algebra import Weights
from .prior_groups import PriorGroup


class FixedNormal:
    """Σ log N(w; 0, 1 / precision), and its slope, with one number per weight tensor."""

    def __init__(self, precisions: Mapping[str, float], start: Mapping[str, Tensor]):
        self.precisions = dict(precisions)
        self.constant = sum(
            0.5 * start[k].numel() * (math.log(p) - math.log(2 * math.pi)) for k, p in precisions.items()
        )
        self._placed: dict[torch.device, Tensor] = {}

    @classmethod
    def of(cls, groups: Sequence[PriorGroup], start: Mapping[str, Tensor], names: Sequence[str]) -> FixedNormal | None:
        """Where all priors are normal with numbers for scales and all weights have one dtype, else None."""
        found: dict[str, float] = {}
        if len({start[k].dtype for k in names}) > 1:
            return None
        for g in groups:
            fixed = getattr(g.prior, "fixed_precision", None)
            for k in g.names:
                value = fixed(start[k].shape) if callable(fixed) else None
                if value is None:
                    return None
                found[k] = value
        return cls({k: found[k] for k in names}, start)

    def add(
        self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights, temperature: float
    ) -> tuple[Tensor, Weights]:
        """Add the tempered log prior to `value` and its slope, in place, to `slopes`."""
        weights = [params[k] for k in self.precisions]
        norms = torch.stack(torch._foreach_norm(weights))
        value = value + (self.constant - 0.5 * torch.dot(self.on(norms), norms * norms)) / temperature
        pulls = [-p / temperature for p in self.precisions.values()]
        own = [slopes[k] for k in self.precisions]
        if len(set(pulls)) == 1:
            torch._foreach_add_(own, weights, alpha=pulls[0])
        else:
            torch._foreach_add_(own, torch._foreach_mul(weights, pulls))
        return value, slopes

    def on(self, like: Tensor) -> Tensor:
        """The precisions as a tensor, made once for a device: no step may make one from Python numbers."""
        if like.device not in self._placed:
            self._placed[like.device] = torch.tensor(
                list(self.precisions.values()), dtype=like.dtype, device=like.device
            )
        return self._placed[like.device]
