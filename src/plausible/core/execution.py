"""How steps are run: one mode directly, many with `vmap` or one after another; eagerly, compiled or captured.

Which way is a fixed rule of shapes and the number of steps, never of timings, because the ways differ in the last
bits and a resumed run must go the way it began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..weights import tree
from ..weights.algebra import Weights, size, slow_vmap_is_an_error
from ..weights.rng import Keys, forked
from ..weights.tree import Tree
from ..weights.twin import twin
from .capture import Captured
from .compilation import compiled
from .method import Method, Trajectory
from .model import BayesianModel
from .starts import refuse_start
from .target import Batch, Target
from .walk import Walker

log = logging.getLogger("plausible")

VMAP_FROM = 4  # modes, on a CPU: below it the batched kernels do not make up for vmap's own cost
GPU_VMAP_WEIGHTS = 1_000_000  # on a GPU larger networks fill the machine alone
COMPILE_FROM = 20_000  # slopes of small networks until a compiler's seconds are won back
CAPTURE_FROM = 20  # steps until capturing a CUDA graph is won back
DROPOUT = 0x64726F70  # the call number at which a step's dropout keys start, far from the method's own


@dataclass(frozen=True)
class Plan:
    """The way a run goes; stored in its checkpoint."""

    vectorised: bool
    compiled: bool
    captured: bool


def make_plan(
    model: Target,
    method: Method,
    modes: int,
    steps: int,
    device: torch.device,
    compile: bool | None,
    vectorise: bool | None,
) -> Plan:
    """The fixed rule."""
    network = model.network if isinstance(model, BayesianModel) else None
    bound_by_library = network is not None and network.library_bound
    impure = network is not None and bool(network.written or network.draws)
    if impure and vectorise and modes > 1:
        log.warning("modes run one after another, since this network writes buffers or draws from the global generator")
    if vectorise is None:
        small = (
            size(model.start) <= GPU_VMAP_WEIGHTS
            if device.type == "cuda"
            else modes >= VMAP_FROM and not bound_by_library
        )
        vectorise = modes > 1 and small and not impure
    if compile is None:
        work = steps * method.slopes_per_step * max(1, modes // VMAP_FROM if vectorise else 1)
        may = method.compiles and not bound_by_library and not impure
        compile = device.type == "cpu" and may and work >= COMPILE_FROM
    if compile and not method.compiles:
        log.warning("%s runs eagerly: its compiled steps would differ from it", type(method).__name__)
        compile = False
    captured = device.type == "cuda" and not impure and steps >= CAPTURE_FROM and not compile
    return Plan(
        vectorised=bool(vectorise and modes > 1 and not impure),
        compiled=bool(compile and not impure),
        captured=captured,
    )


class Execution:
    """The states of all modes and the machinery that moves them on."""

    def __init__(
        self,
        model: Target,
        methods: Sequence[Method],
        params: Sequence[Weights],
        keys: Tensor,
        plan: Plan,
        seeds: Sequence[int],
    ):
        self.model, self.plan, self.keys, self.seeds = model, plan, keys, list(seeds)
        self.modes, self.device = len(params), keys.device
        self.method = methods[0]
        own = _differing_numbers(methods)
        dtype = next(iter(model.start.values())).dtype
        self.numbers = {k: torch.tensor(v, dtype=dtype, device=self.device) for k, v in own.items()}
        self._own_numbers = [{k: v[i] for k, v in own.items()} for i in range(len(params))]
        self.per_mode_batch = False  # set by `fit_many`: every mode has data of its own
        states = [self._method(i).init(model, p) for i, p in enumerate(params)]
        self.lanes: list[Tree] = [tree.stack(states)] if plan.vectorised else states
        self.buffers = [self._own_buffers() for _ in self.lanes]
        self.step_number = torch.zeros((), dtype=torch.int64, device=self.device)
        self._words: list[list[int]] = keys.tolist()  # of every mode, for generators that are seeded outside of steps
        self._steppers: list[Callable[..., Any]] | None = None

    # --- one mode, seen from outside ---

    def state(self, mode: int) -> Tree:
        """The state of one mode."""
        return tree.unstack(self.lanes[0], mode) if self.plan.vectorised else self.lanes[mode]

    def mode_buffers(self, mode: int) -> Weights | None:
        """The buffers that a mode's own passes wrote, where a network writes any."""
        return self.buffers[0 if self.plan.vectorised else mode]

    def with_numbers(self, numbers: dict[str, Any]) -> Method:
        """The method with some of its numbers replaced by those of a mode."""
        return _with_numbers(self.method, numbers)

    def _method(self, mode: int) -> Method:
        return _with_numbers(self.method, {k: v[mode] for k, v in self.numbers.items()})

    def mode_method(self, mode: int) -> Method:
        """The method of one mode, with its own numbers."""
        return _with_numbers(self.method, self._own_numbers[mode])

    def _own_buffers(self) -> Weights | None:
        if not isinstance(self.model, BayesianModel) or not self.model.network.written:
            return None
        return {k: self.model.network.buffers[k].to(self.device, copy=True) for k in self.model.network.written}

    # --- a step ---

    def one(
        self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch, inline: bool = False
    ) -> Any:
        """The step of one mode."""
        model = self._keyed(key, step).bound(inline=inline)
        return _with_numbers(self.method, numbers).step(model, state, batch, Keys(key, step))

    def _keyed(self, key: Tensor, step: Tensor) -> Target:
        """The model with the keys of a step, where its network draws."""
        return self.model.bound(rng=Keys(key, step, call=DROPOUT)) if self.model.needs_key else self.model

    def _lifted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.over_modes(function, (0, 0, None, self.numbers_dim, self.batch_dim))

    def over_modes(self, function: Callable[..., Any], dims: tuple[int | None, ...]) -> Callable[..., Any]:
        """A function of one mode as a function of a lane, where 0 marks what every mode has of its own."""
        return torch.vmap(function, in_dims=dims, randomness="error") if self.plan.vectorised else function

    @property
    def numbers_dim(self) -> int | None:
        """Whether modes differ in their methods' numbers."""
        return 0 if self.numbers else None

    @property
    def batch_dim(self) -> int | None:
        """Whether modes differ in their data."""
        return 0 if self.per_mode_batch else None

    def advance(self, step: int, batch: Batch) -> dict[str, Tensor]:
        """Move every mode one step on; returns what the method shows, stacked over modes."""
        self.step_number.fill_(step)
        if self._steppers is None:
            if step == 0:
                self._look_first(batch)
            self._steppers = self._prepare(batch)
        shown = []
        for lane, stepper in enumerate(self._steppers):
            key = self.keys if self.plan.vectorised else self.keys[lane]
            numbers = self.numbers if self.plan.vectorised else {k: v[lane] for k, v in self.numbers.items()}
            own = _mode_of(batch, lane) if self.per_mode_batch and not self.plan.vectorised else batch
            with self._ambient(lane, step):
                self.lanes[lane], info = stepper(self.lanes[lane], key, self.step_number, numbers, own)
            shown.append(info)
        if len(shown) == 1 and isinstance(self._steppers[0], Captured) and not self.plan.vectorised:
            return tree.tree_map(lambda t: t.unsqueeze(0), shown[0])  # in memory of its own already
        return shown[0] if self.plan.vectorised else tree.stack(shown)

    def probe(self, step: int, batch: Batch) -> None:
        """Let the method look more closely at the batch of a step, in every mode."""
        self.step_number.fill_(step)
        lifted = self._lifted(self._probed)
        for lane, state in enumerate(self.lanes):
            key = self.keys if self.plan.vectorised else self.keys[lane]
            numbers = self.numbers if self.plan.vectorised else {k: v[lane] for k, v in self.numbers.items()}
            own = _mode_of(batch, lane) if self.per_mode_batch and not self.plan.vectorised else batch
            with self._ambient(lane, step):
                tree.copy_into(state, lifted(state, key, self.step_number, numbers, own))

    def _probed(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> Tree:
        return _with_numbers(self.method, numbers).probe(self._keyed(key, step), state, batch, Keys(key, step))

    def _look_first(self, batch: Batch) -> None:
        """Let the method see the first batch; a start that it cannot leave is an error of the user's."""
        if type(self.method).prepared is Method.prepared:
            return

        def one(state: Tree, numbers: dict[str, Tensor], own: Batch) -> Tree:
            return self.with_numbers(numbers).prepared(self.model, state, own)

        look = self.over_modes(one, (0, self.numbers_dim, self.batch_dim))
        for lane, state in enumerate(self.lanes):
            numbers = self.numbers if self.plan.vectorised else {k: v[lane] for k, v in self.numbers.items()}
            own = _mode_of(batch, lane) if self.per_mode_batch and not self.plan.vectorised else batch
            tree.copy_into(state, look(state, numbers, own))
        for mode in range(self.modes):
            refuse_start(mode, self.state(mode))

    def _ambient(self, lane: int, step: int) -> Any:
        """What a network that is not a pure function gets: its own buffers, and a generator seeded per (mode, step)."""
        if self.buffers[lane] is not None:
            self.model = self.model.bound(buffers=self.buffers[lane])
        if isinstance(self.model, BayesianModel) and self.model.network.draws:
            return forked(*self._words[lane], step, 0x616D62, devices=[self.device])
        return nullcontext()

    def _prepare(self, batch: Batch) -> list[Callable[..., Any]]:
        """Decide how steps are run, and check the fast way against the plain one on a copy of the first step."""
        plain = self._lifted(self.one)
        if isinstance(self.method, Trajectory):
            return [Walker(self) for _ in self.lanes]
        if self.plan.captured:
            return [Captured(plain) for _ in self.lanes]
        if not self.plan.compiled:
            return [plain] * len(self.lanes)
        fast = compiled(self._lifted(_Inlined(self.one)))
        stepper = fast if self._agrees(fast, plain, batch) else plain
        return [stepper] * len(self.lanes)

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        lane = tree.clone(self.lanes[0])
        if self.plan.vectorised:
            return lane, self.keys, self.step_number, self.numbers, batch
        numbers = {k: v[0] for k, v in self.numbers.items()}
        return lane, self.keys[0], self.step_number, numbers, _mode_of(batch, 0) if self.per_mode_batch else batch

    def fall_back_to_loop_if_vmap_fails(self, batch: Batch) -> None:
        """Try one step on a copy. `fit` calls it before it keeps anything per lane, so that a resumed run goes the same way."""
        if not self.plan.vectorised:
            return
        try:
            trial = Walker(self).tried if isinstance(self.method, Trajectory) else self._lifted(self.one)
            with slow_vmap_is_an_error():
                trial(*self._arguments(batch))
                if self.method.probed_steps(1):
                    self._lifted(self._probed)(*self._arguments(batch))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, UserWarning) as error:
            log.warning("modes run one after another, since this network cannot be vectorised: %s", _first_line(error))
            states = [tree.clone(self.state(m)) for m in range(self.modes)]
            self.plan = Plan(vectorised=False, compiled=False, captured=self.plan.captured)
            self.lanes, self.buffers = states, [self._own_buffers() for _ in states]

    def _agrees(self, fast: Callable[..., Any], plain: Callable[..., Any], batch: Batch) -> bool:
        before = self._arguments(batch)
        try:
            new, shown = fast(*self._arguments(batch))
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way, and then we go without it
            log.warning("steps run uncompiled: the compiler failed with %s", _first_line(error))
            return False
        expected, told = plain(*self._arguments(batch))
        moved = tree.tree_map(lambda a, b: (a - b).double(), expected["params"], before[0]["params"])
        differs = tree.tree_map(lambda a, b: (a - b).double(), expected["params"], new["params"])
        off = _norm(differs) / max(_norm(moved), 1e-30)
        shift = float(((shown["log_joint"] - told["log_joint"]).abs() / (1 + told["log_joint"].abs())).max())
        if off > 1e-2 or shift > 1e-3:
            log.warning("steps run uncompiled: the compiled step differs by %.2g (log joint by %.2g)", off, shift)
            return False
        return True

    # --- between steps ---

    def keep(self) -> list[Tree]:
        """A record of every lane, by the method's `keep`."""
        return [
            self._each_lane(lambda method, state: method.keep(self.model, state), i) for i in range(len(self.lanes))
        ]

    def adapt(self, step: int) -> None:
        """Let the method adapt every mode, then read what its Python loops must know."""
        for lane in range(len(self.lanes)):
            new = self._each_lane(lambda method, state: method.adapt(self.model, state, step), lane)
            tree.copy_into(self.lanes[lane], new)
        self.replan()

    def gather(self, batch: Batch, first: bool) -> None:
        """Let the method see a batch of a sweep in every mode."""
        call = lambda state, numbers, own: self.with_numbers(numbers).gather(self.model, state, own, first)  # noqa: E731
        lifted = self.over_modes(call, (0, self.numbers_dim, self.batch_dim))
        for lane in range(len(self.lanes)):
            numbers = self.numbers if self.plan.vectorised else {k: v[lane] for k, v in self.numbers.items()}
            own = _mode_of(batch, lane) if self.per_mode_batch and not self.plan.vectorised else batch
            tree.copy_into(self.lanes[lane], lifted(self.lanes[lane], numbers, own))

    def replan(self) -> None:
        """Let the method read Python numbers from the states."""
        joint = self.lanes[0] if self.plan.vectorised else tree.stack(self.lanes)
        self.method = self.method.replanned(joint)

    def _each_lane(self, function: Callable[..., Tree], lane: int) -> Tree:
        """A function of a mode's method (with its own numbers) and state."""
        call = lambda state, numbers: function(self.with_numbers(numbers), state)  # noqa: E731
        if self.plan.vectorised:
            return torch.vmap(call, in_dims=(0, self.numbers_dim))(self.lanes[lane], self.numbers)
        return call(self.lanes[lane], {k: v[lane] for k, v in self.numbers.items()})


class _Inlined:
    """A step whose slope is traced instead of called: the form a compiler can read."""

    def __init__(self, one: Callable[..., Any]):
        self.one = one

    def __call__(self, state: Tree, key: Tensor, step: Tensor, numbers: dict[str, Tensor], batch: Batch) -> Any:
        return self.one(state, key, step, numbers, batch, inline=True)


def _differing_numbers(methods: Sequence[Method]) -> dict[str, list[float]]:
    tables = [m.numbers() for m in methods]
    names = [k for k in tables[0] if any(t.get(k) != tables[0][k] for t in tables)]
    return {k: [t[k] for t in tables] for k in names}


def _with_numbers(method: Method, numbers: dict[str, Any]) -> Method:
    if not numbers:
        return method
    own = twin(method)
    for k, v in numbers.items():
        object.__setattr__(own, k, v)
    return own


def _mode_of(batch: Batch, mode: int) -> Batch:
    return torch.utils._pytree.tree_map(lambda t: t[mode], batch)


def _norm(weights: Weights) -> float:
    return float(sum((w * w).sum() for w in weights.values())) ** 0.5


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
