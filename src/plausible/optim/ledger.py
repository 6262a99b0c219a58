"""What an optimiser remembers between two steps: how many draws and examples the gradients are of, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from ..weights.algebra import Weights, add_
from .gradients import Gradients
from .holding import Placed


@dataclass
class Sums:
    """Sums over the examples of one draw: how many examples there were, and tensors by what they are and of which weight."""

    examples: float = 0  # a mean over processes, where there are several
    tensors: dict[str, Weights] = field(default_factory=dict)

    def add(self, what: str, values: Mapping[str, Tensor]) -> None:
        """Add to the sums called `what`."""
        own = self.tensors.setdefault(what, {})
        known = {k: v for k, v in values.items() if k in own}
        if known:
            add_({k: own[k] for k in known}, known)
        own.update({k: v for k, v in values.items() if k not in own})


@dataclass
class Ledger:
    """Everything since the last step. One object, that the optimiser and the watcher of its network write into.

    Attributes:
        inside: Whether a draw made by `sampled()` is in the network now.
        draws: How many draws the gradients are the average of.
        now: What was measured at the draw that is in the network now.
        by_hand: The same of gradients that `autograd.grad` gave, which count where none came into `.grad` by themselves.
        done: The same of the draws before, each times its number of examples where the loss is a mean.
        mean: The mean that the draw made by `sampled()` is around.
        waiting: Whether the end of a backward pass is waited for.
        gradients: What is known of the tensors in `.grad`.
        placed: Which draw `train()` holds in the network.
    """

    inside: bool = False
    draws: int = 0
    now: Sums = field(default_factory=Sums)
    by_hand: Sums = field(default_factory=Sums)
    done: Sums = field(default_factory=Sums)
    mean: Mapping[str, Tensor] | None = None
    waiting: bool = False
    gradients: Gradients = field(default_factory=Gradients)
    placed: Placed | None = None

    def clear(self) -> None:
        """Forget all but whether a draw is in the network."""
        self.set_aside()
        self.gradients.clear()

    def set_aside(self) -> tuple[int, Sums]:
        """Forget all that was measured, and give the number of draws and the sums of them."""
        known = self.draws, self.done
        self.draws, self.done = 0, Sums()
        self.forget_draw()
        return known

    def forget_draw(self) -> None:
        """Forget what was measured at the draw that is in the network now."""
        self.now, self.by_hand, self.waiting = Sums(), Sums(), False

    @contextmanager
    def noting(self, by_hand: bool) -> Iterator[None]:
        """Write what is measured inside where it belongs."""
        if not by_hand:
            yield
            return
        self.now, self.by_hand = self.by_hand, self.now
        try:
            yield
        finally:
            self.now, self.by_hand = self.by_hand, self.now

    def settle(self) -> None:
        """Decide which gradients count: some that were looked at, to log their size, are nothing to the step."""
        if not self.now.examples:
            self.now.examples = self.by_hand.examples
            for what, values in self.by_hand.tensors.items():
                self.now.add(what, values)
        self.by_hand = Sums()

    def close_draw(self) -> None:
        """Count the draw that is in the network now."""
        self.draws += 1
        self.done.examples += self.now.examples
        for what, values in self.now.tensors.items():
            self.done.add(what, values)
        self.now = Sums()


def averaged_(parameters: Iterable[Tensor], earlier: Iterable[Tensor | None], count: int) -> None:
    """Make every gradient the average of itself, one draw's, and of `earlier`, which is that of `count` − 1 others."""
    for p, before in zip(parameters, earlier, strict=True):
        if p.grad is not None:
            p.grad.div_(count)
            if before is not None:
                p.grad.add_(before, alpha=(count - 1) / count)
        elif before is not None:
            p.grad = before.mul_((count - 1) / count)
