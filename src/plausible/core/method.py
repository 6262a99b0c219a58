"""What an inference method is: a few pure functions on one mode. `fit` does the rest."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from ..weights.algebra import Weights
from ..weights.rng import Keys
from ..weights.tree import Tree
from .posteriors.posterior import Posterior
from .target import Batch

Sweep = Callable[[], Iterator[Batch]]  # all data once, in batches whose weights sum to N
ARRIVAL = 1 << 16  # the call number from which the end of a trajectory draws, past anything its beginning draws


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """An update rule with its hyperparameters.

    `init`, `step` and `posterior` are the method; `keep` is for methods that collect. All run on one mode: `fit` lifts
    them over many with `vmap` or a loop. A state is a nested dictionary of tensors of fixed shape, with the current
    point under "params". A step may write into the state it is given, never branches on a tensor, never reads one
    back, and takes its random numbers from `rng` alone.
    """

    full_batch: ClassVar[bool] = False  # a step sees all data
    trains: ClassVar[bool] = True  # the network runs in train mode
    is_point: ClassVar[bool] = False  # the answer is a point, so the log joint must have a highest one
    post_hoc: ClassVar[bool] = False  # the answer needs the data once more: `survey` instead of `posterior`
    slopes_per_step: ClassVar[int] = 1  # about how many, to judge whether compiling pays

    @property
    def compiles(self) -> bool:
        """Whether a compiler can make the same of a step: False where it is known to fail, or to make something else."""
        return True

    @property
    def needs_validation(self) -> bool:
        """Whether the answer depends on `fit`'s validation data."""
        return False

    def unfold(self) -> tuple[Method, int | None]:
        """The method that runs on one mode, and how many modes it asks for (None: as many as `fit` is told)."""
        return self, None

    def resolved(self, model: Any, num_steps: int) -> Self:
        """The same method with every None derived from the model (which knows N) and the number of steps."""
        return self

    @abstractmethod
    def init(self, model: Any, params: Weights) -> dict[str, Tree]:
        """The state before the first step."""

    def prepared(self, model: Any, state: dict[str, Tree], batch: Batch) -> dict[str, Tree]:
        """The state after a look at the first batch, before the first step; "log_joint" in it must be finite."""
        return state

    @abstractmethod
    def step(
        self, model: Any, state: dict[str, Tree], batch: Batch, rng: Keys
    ) -> tuple[dict[str, Tree], dict[str, Tensor]]:
        """One update. The second result is what to show: at least "log_joint"."""

    @abstractmethod
    def posterior(self, model: Any, state: dict[str, Tree], draws: Tree | None) -> Posterior:
        """The answer, from the last state and the kept records (stacked along a leading axis; None if none)."""

    # --- for methods that look at the data again when all steps are done ---

    def survey(self, model: Any, state: dict[str, Tree], sweep: Sweep, validation: Sweep | None) -> Posterior:
        """The answer, from the last state and sweeps over all data (and over `fit`'s validation data, if there are any).

        The network runs in eval mode with the norm statistics of the state's weights.
        """
        raise NotImplementedError

    # --- for methods that collect ---

    def kept_steps(self, num_steps: int) -> Sequence[int]:
        """After which steps (counted from 0) `keep` is called."""
        return ()

    def capacity(self, num_steps: int) -> int:
        """How many records are held at most; the oldest make room."""
        return len(self.kept_steps(num_steps))

    def keep(self, model: Any, state: dict[str, Tree]) -> Tree:
        """What to remember of this moment. May also update running averages inside the state."""
        raise NotImplementedError

    # --- for methods that adapt ---

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """After which steps `adapt` and then `replanned` are called."""
        return ()

    def adapt(self, model: Any, state: dict[str, Tree], step: int) -> dict[str, Tree]:
        """Change the state after `step`: a pure function, run on every mode."""
        return state

    def replanned(self, state: dict[str, Tree]) -> Self:
        """This method with Python numbers read from the (stacked) state, such as how long a loop must be."""
        return self

    # --- for methods that look more closely at a batch now and then ---

    def probed_steps(self, num_steps: int) -> Sequence[int]:
        """Before which steps `probe` is called with the batch of the step."""
        return ()

    def probe(self, model: Any, state: dict[str, Tree], batch: Batch, rng: Keys) -> dict[str, Tree]:
        """The state after a closer look at a batch, such as its curvature. Run on every mode, eagerly; `rng` is the step's."""
        return state

    # --- for methods that look at all data now and then ---

    @property
    def fixed_batches(self) -> bool:
        """Whether batches are those of a fixed partition, picked with replacement; each is then a `Placed`."""
        return False

    def swept_steps(self, num_steps: int) -> Sequence[int]:
        """Before which steps `gather` is called with every batch of a sweep over the data."""
        return ()

    def gather(self, model: Any, state: dict[str, Tree], batch: Any, first: bool) -> dict[str, Tree]:
        """The state after one more batch of a sweep, the `first` of which begins anew. Run on every mode."""
        return state

    def numbers(self) -> dict[str, float]:
        """Its hyperparameters that are numbers, which may differ between the runs of one `fit_many`."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in fields.items() if isinstance(v, float) and not isinstance(v, bool)}


@dataclass(frozen=True, kw_only=True)
class Trajectory(Method):
    """A method whose step repeats one deterministic move, such as a leapfrog, a number of times.

    Only the move is compiled or captured, and then repeated: a trajectory is never unrolled.
    """

    @property
    @abstractmethod
    def num_moves(self) -> int:
        """How often the move is made, at most."""

    def unfinished(self, walk: dict[str, Tree]) -> Tensor | None:
        """Whether a walk goes on; None if the number of moves is known.

        A finished walk stands still: whatever is noted of it stays as it is, however many moves more the others make.
        """
        return None

    @abstractmethod
    def begin(self, model: Any, state: dict[str, Tree], batch: Batch, rng: Keys) -> dict[str, Tree]:
        """Set out: the walk, a tree of tensors."""

    def seen(self, walk: dict[str, Tree]) -> dict[str, Tree]:
        """The "point", the "slope" and the "log_joint" of a walk where it stands."""
        return walk

    @abstractmethod
    def move(self, model: Any, walk: dict[str, Tree], batch: Batch) -> dict[str, Tree]:
        """One move."""

    @abstractmethod
    def end(
        self, model: Any, state: dict[str, Tree], walk: dict[str, Tree], rng: Keys
    ) -> tuple[dict[str, Tree], dict[str, Tensor]]:
        """Arrive: the new state, and what to show."""

    def step(
        self, model: Any, state: dict[str, Tree], batch: Batch, rng: Keys
    ) -> tuple[dict[str, Tree], dict[str, Tensor]]:
        """Begin, move, end. `fit` does the same with a fast move, and stops when all walks are finished."""
        walk = self.begin(model, state, batch, rng)
        for _ in range(self.num_moves):
            walk = self.move(model, walk, batch)
        return self.end(model, state, walk, rng.later(ARRIVAL))


@dataclass(frozen=True, kw_only=True)
class Repeated(Method):
    """Several independent runs of the method in its field `base`; the answer is their mixture."""

    base: Method

    def init(self, model: Any, params: Weights) -> dict[str, Tree]:
        """The base's."""
        return self.base.init(model, params)

    def step(
        self, model: Any, state: dict[str, Tree], batch: Batch, rng: Keys
    ) -> tuple[dict[str, Tree], dict[str, Tensor]]:
        """The base's."""
        return self.base.step(model, state, batch, rng)

    def posterior(self, model: Any, state: dict[str, Tree], draws: Tree | None) -> Posterior:
        """The base's."""
        return self.base.posterior(model, state, draws)


def require(condition: bool, message: str) -> None:
    """Raise a ValueError unless a hyperparameter is as it must be."""
    if not condition:
        raise ValueError(message)
