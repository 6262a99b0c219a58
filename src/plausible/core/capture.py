"""A step recorded once as a CUDA graph and replayed: launch costs vanish."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..weights import tree

log = logging.getLogger("plausible")

WARM_UPS = 3  # runs before recording, so that libraries have chosen their algorithms and taken their workspaces


class Captured:
    """A stepper that records at its first call. Its state tensors stay where they are; batches are copied in."""

    def __init__(self, plain: Callable[..., Any]):
        self.plain = plain
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False

    def __call__(self, state: Any, key: Any, step: Any, numbers: Any, batch: Any) -> Any:
        """Run one step; what is shown is in memory of its own."""
        if self.failed:
            return self._uncaptured(state, key, step, numbers, batch)
        if self.graph is None:
            try:
                self._record(state, key, step, numbers, batch)
            except RuntimeError as error:
                self.failed = True
                torch.cuda.synchronize()
                log.warning("steps run uncaptured: %s", str(error).strip().splitlines()[0])
                return self._uncaptured(state, key, step, numbers, batch)
        for mine, theirs in zip(self.inputs, pytree.tree_leaves(batch), strict=True):
            mine.copy_(theirs)
        assert self.graph is not None
        self.graph.replay()
        return self.state, tree.tree_map(lambda t: t.clone(), self.shown)

    def _uncaptured(self, *arguments: Any) -> Any:
        state, shown = self.plain(*arguments)
        return state, tree.tree_map(lambda t: t.clone(), shown)

    def _record(self, state: Any, key: Any, step: Any, numbers: Any, batch: Any) -> None:
        leaves, spec = pytree.tree_flatten(batch)
        self.inputs = [t.clone() for t in leaves]
        own = pytree.tree_unflatten(self.inputs, spec)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                expected, told = self.plain(tree.clone(state), key, step, numbers, own)
        torch.cuda.current_stream().wait_stream(side)
        before = tree.clone(state)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            new, shown = self.plain(state, key, step, numbers, own)
            tree.copy_into(state, new)
        self.state, self.shown = state, shown
        graph.replay()
        off = (shown["log_joint"] - told["log_joint"]).abs().max() / (1 + told["log_joint"].abs().max())
        gap = max(
            float((a - b).abs().max())
            for (_, a), (_, b) in zip(tree.leaves(state["params"]), tree.leaves(expected["params"]), strict=True)
        )
        size = max(float(b.abs().max()) for _, b in tree.leaves(expected["params"]))
        tree.copy_into(state, before)
        if float(off) > 1e-3 or gap > 1e-2 * (size + 1e-6):
            raise RuntimeError(
                f"the captured step differs from an eager one by {gap:.2g} (log joint by {float(off):.2g})"
            )
        self.graph = graph
