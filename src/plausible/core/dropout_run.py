"""Passes under dropout masks, many at once: the batch is repeated, once for every pass, where the first mask meets it.

What comes before the first mask is the same in every pass, and runs once. Two things can stand in the way, and a few
examples tell: a later layer may need what was before the mask (a skip connection), or examples may lie along another axis
than the first there. Then the inputs are repeated. A network that mixes examples runs one pass after another.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..weights.algebra import Weights
from ..weights.masked_layers import Drop
from ..weights.rng import forked
from . import batch as batches
from .posteriors.dropout import Dropout, dropped
from .posteriors.posterior import Stratum

LATE, EARLY, ONE_BY_ONE = "late", "early", "one by one"
FEW = 3  # examples to try the ways with
TRIAL = 0x747279  # the stream of a network that draws while they are tried
GOLDEN = 0.5 * (5**0.5 - 1)  # its multiples' fractions have no period


class DropoutRun:
    """Every draw is a pass with masks of its own for every example."""

    activations = 1
    vectorised = True

    def __init__(self, stratum: Stratum):
        assert isinstance(stratum.posterior, Dropout)
        self.stratum, self.own, self.model = stratum, stratum.posterior, stratum.posterior.model
        self.bank = self.own.statistics
        missing = [k for k in self.model.network.statistics if k not in (self.bank or {})]
        if missing:
            raise ValueError(
                f"this network's norm layers need statistics, and there are none for {missing[0]}; gather them with "
                "posterior.refresh(training_data)"
            )
        self._way: str | None = None

    @property
    def centre(self) -> Weights:
        """The weights when nothing is dropped."""
        return self.own.params

    def draw(self, low: int, high: int) -> tuple[Weights, Weights]:
        """The weights, which no pass changes, and the noise parameters once for every pass."""
        noise = {k: self.own.params[k] for k in self.model.belief.noise}
        return self.own.params, {k: v.expand(high - low, *v.shape) for k, v in noise.items()}

    def forward(self, params: Weights, low: int, high: int, inputs: Any, answer: Tensor) -> None:
        """Fill `answer` (draws, examples, ...)."""
        if self._way is None:
            self._way = self._find_way(inputs)
        if self._way == ONE_BY_ONE:
            for i in range(high - low):
                answer[i] = self._pass(inputs, 1, EARLY)
        else:
            answer.copy_(self._pass(inputs, high - low, self._way).unflatten(0, (high - low, -1)))

    def _find_way(self, inputs: Any) -> str:
        few, device = batches.rows(inputs, slice(0, FEW)), self.own.device
        unmasked = self.model.bound(buffers=self.bank, training=False)
        found: dict[str, Tensor] = {}
        for way in (EARLY, LATE):
            with contextlib.suppress(RuntimeError, ValueError, IndexError), forked(TRIAL, devices=[device]):
                found[way] = self._pass(few, 2, way, patterned)
        with forked(TRIAL, devices=[device]):
            alone = unmasked.outputs(self.own.params, few)
            try:
                together = unmasked.outputs(self.own.params, _repeated(few, 2))
            except (RuntimeError, ValueError, IndexError):
                return ONE_BY_ONE
        if EARLY not in found or not _alike(together, _repeated(alone, 2)):
            return ONE_BY_ONE
        return LATE if LATE in found and _alike(found[LATE], found[EARLY]) else EARLY

    def _pass(self, inputs: Any, times: int, way: str, dropped: Drop = dropped) -> Tensor:
        """Outputs (times · examples, ...), pass after pass."""
        examples = batches.length(inputs)
        spread = way == EARLY or times == 1

        def drop(x: Tensor, rate: float, *by: Any) -> Tensor:
            nonlocal spread
            if spread:
                return dropped(x, rate, *by)
            spread = True
            if by:  # of whole channels, perhaps, so that axes must be where they were
                return dropped(_repeated(x, times), rate, *by)
            return dropped(x.expand(times, *x.shape), rate).flatten(0, 1)  # which is never in memory without its mask

        model = self.model.bound(buffers=self.bank, training=False, around=self.own.around(drop))
        out = model.outputs(self.own.params, _repeated(inputs, times) if way == EARLY else inputs)
        out = out if spread else _repeated(out, times)
        if out.shape[0] != times * examples:
            raise ValueError(f"{times} passes of {examples} examples gave {out.shape[0]} outputs")
        return out


def patterned(x: Tensor, rate: float, *by: Any) -> Tensor:
    """Half of x by its place alone: the same in all ways of repeating, where a generator's coins follow memory's order."""
    places = torch.arange(x.numel(), dtype=torch.float64, device=x.device).reshape(x.shape)
    return 2 * x * (places * GOLDEN % 1 < 0.5)


def _repeated(tensors: Any, times: int) -> Any:
    if times == 1:
        return tensors
    return pytree.tree_map(lambda t: t.expand(times, *t.shape).flatten(0, 1), tensors)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
