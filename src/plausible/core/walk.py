"""Trajectories: the beginning and the end run eagerly, and the move between them compiled or captured, many times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..weights import tree
from ..weights.rng import Keys
from ..weights.tree import Tree
from .capture import WARM_UPS
from .compilation import compiled_move, held_to
from .method import ARRIVAL, Trajectory
from .target import Batch

if TYPE_CHECKING:
    from .execution import Execution

log = logging.getLogger("plausible")

LOOK_EVERY = 8  # moves until a GPU is asked whether all walks are finished; on a CPU looking costs nothing
FEW_PRODUCTS = 1 << 20  # of weights and examples, up to which threads wait for one another longer than they compute

Moves = Callable[[Tree, Batch, int], Tree]  # makes up to so many moves, until all walks are finished


class Walker:
    """A stepper for a `Trajectory`: its move is compiled or captured where the plan says so, and then repeated."""

    def __init__(self, execution: Execution):
        self.execution = execution
        own, data = execution.numbers_dim, execution.batch_dim
        self._begin = execution.over_modes(self._begin_one, (0, 0, None, own, data))
        self._move = execution.over_modes(self._move_one, (0, data))
        self._traced = execution.over_modes(self._traced_one, (0, data))
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
        new, shown = self._end(state, self._fast(walk, batch, self._method({}).num_moves), key, step, numbers)
        return new, tree.clone(shown)  # which a callback may keep, while the memory of a captured walk is used again

    def tried(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> None:
        """Begin, make one plain move and end, to see whether that can be done."""
        walk = self._move(self._begin(state, key, step, numbers, batch), batch)
        self._end(state, walk, key, step, numbers)

    def _stepwise(self, moves: Callable[[Tree, Batch, int], Tree], burst: int) -> Moves:
        """As many moves as it takes until every mode has finished, looked at after every so many: who has stands still."""

        def run(walk: Tree, batch: Batch, count: int) -> Tree:
            method = self._method({})
            if method.unfinished(walk) is None:
                return moves(walk, batch, count)
            while count > 0:
                walk = moves(walk, batch, min(burst, count))
                count -= burst
                if not bool(method.unfinished(walk).any()):  # type: ignore[union-attr]
                    break
            return walk

        return run

    def _made_fast(self, walk: Tree, batch: Batch) -> Any:
        """The fast move if it does what the plain one does, else the plain one."""
        plain = self._stepwise(_repeated(self._move), 1)
        failure = ""
        for way in self._fast_ways():
            try:
                fast = way(walk, batch)
                found = self._method({}).seen(fast(tree.clone(walk), batch, 1))
            except Exception as error:  # noqa: BLE001 - a compiler may fail in any way, and then we go without it
                lines = str(error).strip().splitlines()
                failure = f"making them fast failed: {lines[0] if lines else type(error).__name__}"
                continue
            expected = self._method({}).seen(plain(tree.clone(walk), batch, 1))
            gap = _relative(*_comparable(found["slope"], expected["slope"]))
            values = _comparable(found["log_joint"], expected["log_joint"])
            if gap < 1e-3 and torch.allclose(*values, rtol=1e-3, atol=1e-3):
                return fast
            failure = f"the fast move differs by {gap:.2g}"
        if failure:
            log.warning("trajectories run plainly, since %s", failure)
        return plain

    def _fast_ways(self) -> list[Callable[[Tree, Batch], Moves]]:
        """The plan's, the fastest first; before torch 2.13 a compiler may not read loops."""
        if self.execution.plan.captured:
            return [lambda walk, batch: self._stepwise(CapturedMoves(self._move, walk, batch), LOOK_EVERY)]
        return [self._compiled_loop, self._compiled_move] if self.execution.plan.compiled else []

    def _compiled_loop(self, walk: Tree, batch: Batch) -> Moves:
        unfinished = lambda now: self._method({}).unfinished(now)  # noqa: E731
        own_data = self.execution.plan.vectorised and self.execution.per_mode_batch
        threads = _threads(self._method({}).seen(walk)["point"], batch, axis=1 if own_data else 0)
        return CompiledMoves(self._traced, unfinished, walk, self._move(walk, batch), threads)

    def _compiled_move(self, walk: Tree, batch: Batch) -> Moves:
        return self._stepwise(_repeated(compiled_move(self._traced)), 1)


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


def _repeated(move: Callable[[Tree, Batch], Tree]) -> Moves:
    def run(walk: Tree, batch: Batch, count: int) -> Tree:
        for _ in range(count):
            walk = move(walk, batch)
        return walk

    return run


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / (expected.norm() + 1e-12))


def _comparable(found: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both with zeros where neither is finite: a first move over a cliff says nothing against a fast way.

    A resumed run compares at another step, and must come to the same answer.
    """
    fallen = ~(found.isfinite() | expected.isfinite())
    return found.masked_fill(fallen, 0.0), expected.masked_fill(fallen, 0.0)


class CompiledMoves:
    """A loop of moves compiled as a whole, so that no Python runs between two of them.

    Args:
        move: The move of all modes, in the form a compiler can read.
        unfinished: Which walks go on; None if they all make the same number of moves.
        walk: A walk.
        moved: The same after a move. What is then still the same memory, such as a mass, is no part of the loop's state.
        threads: For the loop.
    """

    def __init__(
        self,
        move: Callable[[Tree, Batch], Tree],
        unfinished: Callable[[Tree], Tensor | None],
        walk: Tree,
        moved: Tree,
        threads: int,
    ):
        from torch._higher_order_ops import while_loop  # which imports the compiler: an eager run does without

        before, self._spec = pytree.tree_flatten(walk)
        after, spec = pytree.tree_flatten(moved)
        assert spec == self._spec, "a move changes the structure of its walk"
        self._still = [a.shape == b.shape and a.data_ptr() == b.data_ptr() for a, b in zip(before, after, strict=True)]
        self._threads = threads

        def loop(count: Tensor, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
            def goes_on(left: Tensor, *moving: Tensor) -> Tensor:
                growing = unfinished(self._joined(leaves, moving))
                return left > 0 if growing is None else (left > 0) & growing.any()

            def body(left: Tensor, *moving: Tensor) -> tuple[Tensor, ...]:
                return (left - 1, *self._moving(pytree.tree_leaves(move(self._joined(leaves, moving), batch))))

            return while_loop(goes_on, body, (count, *self._moving(leaves)))

        self._loop = compiled_move(loop)

    def _moving(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        return [leaf for leaf, still in zip(leaves, self._still, strict=True) if not still]

    def _joined(self, leaves: Sequence[Tensor], moving: Sequence[Tensor]) -> Tree:
        """A walk of what moves and of what does not."""
        now = iter(moving)
        together = [leaf if still else next(now) for leaf, still in zip(leaves, self._still, strict=True)]
        return pytree.tree_unflatten(together, self._spec)

    def __call__(self, walk: Tree, batch: Batch, count: int) -> Tree:
        """Up to so many moves."""
        leaves = pytree.tree_leaves(walk)
        with held_to(self._threads):
            _, *moved = self._loop(torch.tensor(count), leaves, batch)
        return self._joined(leaves, moved)


def _threads(points: Tensor, batch: Batch, axis: int) -> int:
    """One for small networks on few examples (along an axis of the data), else as many as there are: a rule of shapes."""
    tensors = [t for t in pytree.tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > axis]
    products = points.numel() * max((t.shape[axis] for t in tensors), default=1)
    return 1 if products <= FEW_PRODUCTS else torch.get_num_threads()
