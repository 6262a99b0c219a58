"""Trajectories: the beginning and the end run eagerly, and the move between them compiled or captured, many times."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..weights import tree
from ..weights.rng import Keys
from ..weights.tree import Tree
from .capture import WARM_UPS
from .compilation import compiled_move
from .method import ARRIVAL, Trajectory
from .target import Batch

if TYPE_CHECKING:
    from .execution import Execution

log = logging.getLogger("plausible")

LOOK_EVERY = 8  # moves until a GPU is asked whether all walks are finished; on a CPU looking costs nothing


class Walker:
    """A stepper for a `Trajectory`: its move is compiled or captured where the plan says so, and then repeated."""

    def __init__(self, execution: Execution):
        self.execution = execution
        own, data = execution.numbers_dim, execution.batch_dim
        self._begin = execution.over_modes(self._begin_one, (0, 0, None, own, data))
        self._move = execution.over_modes(self._move_one, (0, data))
        self._end = execution.over_modes(self._end_one, (0, 0, 0, None, own))
        self._fast: Any = None

    def _method(self, numbers: dict[str, Tensor]) -> Trajectory:
        method = self.execution.with_numbers(numbers)
        assert isinstance(method, Trajectory)
        return method

    def _begin_one(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> Tree:
        return self._method(numbers).begin(self.execution.model, state, batch, Keys(key, step))

    def _move_one(self, walk: Tree, batch: Batch) -> Tree:
        return self._method({}).move(self.execution.model, walk, batch)

    def _traced_one(self, walk: Tree, batch: Batch) -> Tree:
        return self._method({}).move(self.execution.model.bound(inline=True), walk, batch)

    def _end_one(self, state: Tree, walk: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor]) -> Any:
        return self._method(numbers).end(self.execution.model, state, walk, Keys(key, step).later(ARRIVAL))

    def __call__(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> Any:
        """One step."""
        walk = tree.clone(self._begin(state, key, step, numbers, batch))  # no two of its tensors are one memory
        if self._fast is None:
            self._fast = self._made_fast(walk, batch)
        new, shown = self._end(state, self._walked(walk, batch), key, step, numbers)
        return new, tree.clone(shown)  # which a callback may keep, while the memory of a captured walk is used again

    def tried(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> None:
        """Begin, make one plain move and end, to see whether that can be done."""
        walk = self._move(self._begin(state, key, step, numbers, batch), batch)
        self._end(state, walk, key, step, numbers)

    def _walked(self, walk: Tree, batch: Batch) -> Tree:
        """All moves, or as many as it takes until every mode has finished: a walk that has stands still."""
        method = self._method({})
        left = method.num_moves
        if method.unfinished(walk) is None:
            return self._fast(walk, batch, left)
        burst = LOOK_EVERY if self.execution.device.type == "cuda" else 1
        while left > 0:
            walk = self._fast(walk, batch, min(burst, left))
            left -= burst
            if not bool(method.unfinished(walk).any()):  # type: ignore[union-attr]
                break
        return walk

    def _repeated(self, move: Any) -> Any:
        def run(walk: Tree, batch: Batch, count: int) -> Tree:
            for _ in range(count):
                walk = move(walk, batch)
            return walk

        return run

    def _made_fast(self, walk: Tree, batch: Batch) -> Any:
        """The fast move if it does what the plain one does, else the plain one."""
        plain = self._repeated(self._move)
        if not (self.execution.plan.captured or self.execution.plan.compiled):
            return plain
        try:
            fast: Any = CapturedMoves(self._move, walk, batch) if self.execution.plan.captured else self._compiled()
            found = fast(tree.clone(walk), batch, 1)
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way, and then we go without it
            lines = str(error).strip().splitlines()
            log.warning(
                "trajectories run plainly, since making them fast failed: %s",
                lines[0] if lines else type(error).__name__,
            )
            return plain
        expected = plain(tree.clone(walk), batch, 1)
        gap = _relative(found["slope"], expected["slope"])
        if not gap < 1e-3 or not torch.allclose(found["log_joint"], expected["log_joint"], rtol=1e-3, atol=1e-3):
            log.warning("trajectories run plainly, since the fast move differs by %.2g", gap)
            return plain
        return fast

    def _compiled(self) -> Any:
        traced = self.execution.over_modes(self._traced_one, (0, self.execution.batch_dim))
        return self._repeated(compiled_move(traced))


class CapturedMoves:
    """A move recorded as a CUDA graph on a walk in fixed memory."""

    def __init__(self, move: Any, walk: Tree, batch: Batch):
        self.walk = tree.clone(walk)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                move(tree.clone(walk), batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            tree.copy_into(self.walk, move(self.walk, batch))

    def __call__(self, walk: Tree, batch: Batch, count: int) -> Tree:
        """Copy the walk in, replay, and hand it out; the data of a full-batch method stay where they were."""
        tree.copy_into(self.walk, walk)
        for _ in range(count):
            self.graph.replay()
        return self.walk


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / (expected.norm() + 1e-12))
