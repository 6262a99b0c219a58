"""What all optimisers share: drawing weights and putting them back, counting examples and draws, state, posteriors.

The weights that the network has between steps are the mean of q, unless `train()` holds a draw there. All numbers follow
the mean negative log likelihood of an example, so that a learning rate means what it means in any PyTorch loop.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Posterior
from ..curvature.passes import Traced
from ..weights.algebra import Weights
from ..weights.rng import Keys, run_key
from . import closures
from .answers import answer
from .checks import number, require_network, whole
from .groups import group_weights, grouped
from .holding import Placed, versions, warn_if_written
from .ledger import Ledger, averaged_
from .networks import bare, warn_of_strangers
from .parts import Part, parts
from .processes import bring_together
from .saved import keep_precision, require_fitting
from .watcher import Hooks
from .witness import NAME, Witness


class BayesianOptimizer(Optimizer):
    """An optimiser of a network's weights whose answer is a posterior.

    A subclass states how a draw deviates from the mean (`_deviation`) and how a step moves (`_update`), keeps what it
    remembers of a weight in `state[weight]`, and makes its `_posterior`.

    Args:
        network: Whose trainable weights are inferred.
        numbers: The method's own, for every parameter group: "lr" and the like.
        num_data: N, the number of training examples.
        prior_precision: δ of the prior N(0, 1 / δ) of a weight: a number, or numbers by name pattern, of which the first
            that matches counts.
        reduction: Whether the loss is the "mean" or the "sum" of the examples' negative log likelihoods.
        num_samples: How many draws `step(closure)` averages over.
        seed: Draws are a function of (seed, step, call) alone.
    """

    measures = False  # whether single examples' gradients are needed, so that passes must be recorded
    remembers = False  # whether something is made of gradients as they come back

    def __init__(
        self, network: nn.Module, numbers: Mapping[str, Any], *, num_data: float, prior_precision: float | Mapping[str, float],
        reduction: str, num_samples: int, seed: int,
    ):  # fmt: skip
        require_network(network)
        num_data, lr, seed = number("num_data", num_data), number("lr", numbers["lr"]), whole("seed", seed)
        num_samples = whole("num_samples", num_samples)
        require(num_data > 0, f"num_data must be the number of training examples, got {num_data}")
        require(reduction in ("mean", "sum"), f'reduction must be "mean" or "sum", got {reduction!r}')
        require(num_samples >= 1, f"num_samples must be at least 1, got {num_samples}")
        require(lr > 0, f"lr must be positive, got {lr}")
        self.network, self.reduction = network, reduction
        self.ledger = Ledger()  # one object: frameworks that wrap an optimiser copy its attributes
        names = {name: p for name, p in bare(network).named_parameters() if p.requires_grad}
        require(bool(names), "the network has no weight with requires_grad=True, so nothing is unknown")
        for name, p in names.items():
            require(not p.is_complex(), f"{name} is complex; give the network its real and imaginary parts as weights")
        groups = grouped(names, prior_precision)
        self.witness = Witness(next(iter(names.values()))) if self.measures or self.remembers else None
        if self.witness is not None:
            groups[0]["params"].append((NAME, self.witness.parameter))
        told = {"num_data": num_data, "num_samples": num_samples, "prior_precision": 1.0, "seed": seed}
        own = {**numbers, "lr": lr, **told, "method": type(self).__name__}
        super().__init__(groups, {**own, "step": 0, "call": 0, "held": False})
        self.complete = True
        self._hooks: Hooks | None = None
        self._listen()

    def _listen(self) -> None:
        """Hook the network, unless that is done; of a copy not before all of it is there."""
        self.abandon_passes()
        if self._hooks is None and "_forward_hooks" in vars(self.network):
            self._hooks = Hooks(self)

    # --- what a subclass states ---

    def _deviation(self, rng: Keys) -> Weights | None:
        """A draw of (weights − mean), or None where gradients are taken at the mean."""
        return None

    def _close_draw(self) -> None:
        """Finish what was measured at a draw, in `self.ledger.now`, before it is added to that of other draws."""

    def measure_use(self, traced: Traced, place: int, slope: Tensor, names: Sequence[str]) -> bool:
        """See the gradient `slope` of one use of weights, the only one of each of `names`, as soon as it is there.

        Returns:
            Whether that was all that had to be seen of these weights, so that their part of the pass can be let go of.
        """
        return False

    def measure(self, traced: Traced, columns: Tensor, names: Sequence[str]) -> None:
        """See what one backward pass tells of single examples, and add sums over them to `self.ledger.now`.

        Args:
            traced: The pass; `traced.pull(columns)` has the gradients that came back to every use of a weight.
            columns: The gradient of the network's output, (1, N, outputs...).
            names: The weights that `measure_use` did not see.
        """
        raise NotImplementedError

    def gradient_came(self, name: str, weight: Tensor) -> None:
        """See the gradient of a weight after a backward pass, where `remembers` asks for it."""

    @abstractmethod
    def _update(self, parts: list[Part]) -> None:
        """Move the means, with what was measured in `self.ledger.done`."""

    @abstractmethod
    def _posterior(self, model: BayesianModel, mean: Weights) -> Posterior:
        """The answer, in tensors of its own."""

    # --- drawing weights ---

    @property
    def draws_weights(self) -> bool:
        """Whether gradients are taken at draws."""
        return type(self)._deviation is not BayesianOptimizer._deviation

    @property
    def random(self) -> bool:
        """Whether anything is drawn."""
        return self.draws_weights

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Run and differentiate the network at weights drawn from q; the mean is back at the end, whatever happens.

        Several of these before one step average over their draws.
        """
        weights, earlier = list(self.weights().values()), self._open_draw()
        # Also where a draw is held, which comes back in the end.
        back = [p.detach().clone() for p in weights] if self.draws_weights else None
        mean = self.means() if self.held or back is None else dict(zip(self.weights(), back, strict=True))
        counted = False
        self.ledger.inside, self.ledger.mean = True, mean
        try:
            self._place_draw(mean)
            yield
            self._end_draw()
            if earlier is not None:
                averaged_(weights, earlier, self.ledger.draws)
            self.ledger.gradients.close_draw(self.weights())
            counted = True
        finally:
            self.abandon_passes()
            self.ledger.inside, self.ledger.mean = False, None
            if not counted:  # something was raised
                self.ledger.forget_draw()
                for p, before in zip(weights, earlier or [], strict=earlier is not None):
                    p.grad = before
            if back is not None:
                with torch.no_grad():
                    torch._foreach_copy_(weights, back)
                if self.ledger.placed is not None:
                    self.ledger.placed = Placed(self.ledger.placed.call, versions(self))

    def _end_draw(self) -> None:
        """Count the draw that is in the network, and what was measured at it."""
        self.ledger.settle()
        self._close_draw()
        self.ledger.close_draw()

    def abandon_passes(self) -> None:
        """End what Ctrl-C broke off."""
        if self._hooks is not None and self._hooks.watcher is not None:
            self._hooks.watcher.abandon()

    def _require_no_draw(self, what: str) -> None:
        if self.ledger.inside:
            raise RuntimeError(
                f"{what} is inside `with optimizer.sampled():`, where weights are a draw, and belongs after it"
            )

    def _open_draw(self) -> list[Tensor | None] | None:
        """Set the gradients of earlier draws aside, if there are any."""
        self._listen()
        ledger, weights = self.ledger, self.weights()
        if ledger.inside:
            raise RuntimeError("weights are drawn already: sampled() does not nest, and step(closure) draws by itself")
        if ledger.draws and ledger.gradients.were_cleared(weights):  # by network.zero_grad()
            ledger.clear()
        if ledger.draws:
            ledger.gradients.require_none_outside(weights)
            earlier = [p.grad for p in weights.values()]
            for p in weights.values():
                p.grad = None
            return earlier
        ledger.gradients.names_outside(weights)  # those that were cleared are forgotten
        return None

    @torch.no_grad()
    def _place_draw(self, mean: Mapping[str, Tensor]) -> None:
        """Put a fresh draw into the network. In place: a backward pass through weights that are gone is then an error."""
        call = self._spend()
        deviation = self.deviation_of(call)
        if deviation is None:
            return
        weights = self.weights()
        torch._foreach_copy_(list(weights.values()), [mean[k] for k in weights])
        if deviation:
            torch._foreach_add_([weights[k] for k in deviation], list(deviation.values()))
        self.ledger.placed = Placed(call, versions(self)) if self.held and not self.ledger.inside else None

    def deviation_of(self, call: int) -> Weights | None:
        """The draw of this step with that number, less the mean."""
        return self._deviation(self._rng(call))

    def train(self) -> None:
        """Hold a draw in the network from now on, and a fresh one after every step, for loops that call `step()` bare."""
        self._require_no_draw("optimizer.train()")
        self._listen()
        if not self.draws_weights or self.held:
            return
        mean = self.means()
        for k, p in self.weights().items():
            self.state[p]["mean"] = mean[k].detach().clone()
        self._set("held", True)
        self._place_draw(self.means())

    def eval(self) -> None:
        """Hold the mean in the network from now on."""
        self._require_no_draw("optimizer.eval()")
        if not self.held:
            return
        warn_if_written(self, self.ledger.placed)
        weights, mean = self.weights(), self.means()
        with torch.no_grad():
            torch._foreach_copy_(list(weights.values()), [mean[k] for k in weights])
        for p in weights.values():
            del self.state[p]["mean"]
        self._set("held", False)

    @property
    def num_data(self) -> float:
        """N."""
        return self.param_groups[0]["num_data"]

    @property
    def num_samples(self) -> int:
        """How many draws `step(closure)` averages over."""
        return self.param_groups[0]["num_samples"]

    @property
    def held(self) -> bool:
        """Whether the network has a draw between steps."""
        return self.param_groups[0]["held"]

    # --- a step ---

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and what is known of their draws and examples."""
        super().zero_grad(set_to_none)
        self._listen()
        self.ledger.gradients.clear()
        if self.ledger.inside:
            self.ledger.forget_draw()
        else:
            self.ledger.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update, from the gradients that are there or from those that `closure` makes at draws.

        Args:
            closure: Clears the gradients, runs the network, calls `backward` and returns the loss.
        """
        ledger = self.ledger
        if ledger.inside:
            raise RuntimeError(
                "step() is inside `with optimizer.sampled():` and belongs after it, and step(closure) draws by itself"
            )
        self._listen()
        if self._hooks is not None:
            self._hooks.require_newest()
        loss = None if closure is None else closures.run(self, closure)
        if ledger.draws == 0:
            if self.held or not self.draws_weights:
                self._end_draw()
            else:
                raise RuntimeError(
                    "no weights were drawn since the last step: run the network and backward inside `with "
                    "optimizer.sampled():`, give step a closure, or call optimizer.train() before the loop"
                )
        ledger.gradients.require_none_outside(self.weights())
        if self.held:
            warn_if_written(self, self.ledger.placed)
        try:
            bring_together(self)
            self._update(parts(self))
        finally:
            ledger.clear()
        if self._hooks is not None and not self._hooks.warned:
            self._hooks.warned = warn_of_strangers(self)
        self._set("step", self.param_groups[0]["step"] + 1)
        self._set("call", 0)
        if self.held:
            self._place_draw(self.means())
        return loss

    # --- names, numbers and keys ---

    def weights(self) -> dict[str, Tensor]:
        """The network's weights as they are, by name."""
        return {k: p for g in self.param_groups for k, p in group_weights(g).items()}

    def means(self) -> Weights:
        """The means: the network's weights, unless a draw is there."""
        if self.ledger.mean is not None:
            return dict(self.ledger.mean)
        return {k: self.state[p]["mean"] if self.held else p for k, p in self.weights().items()}

    def _set(self, name: str, value: Any) -> None:
        for group in self.param_groups:  # where every tool that saves an optimiser looks
            group[name] = value

    def _spend(self) -> int:
        call = self.param_groups[0]["call"]
        self._set("call", call + 1)
        return call

    def _rng(self, call: int = 0) -> Keys:
        first = self.param_groups[0]
        device = first["params"][0].device
        step = torch.full((), first["step"], dtype=torch.int64, device=device)
        return Keys(run_key(first["seed"], device=device), step, call)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the optimiser is made: its steps and draws are counted for all weights at once."""
        if getattr(self, "complete", False):
            raise RuntimeError(
                f"weights cannot be added to {type(self).__name__}; make another one of the network when they are to be trained"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """All of it, the network too: a copy goes on with a copy of the network."""
        # Not what torch keeps for itself, and not the step that a scheduler has put in the place of the method.
        own = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "step"}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.ledger.placed = None
        if "network" in state:  # of a copy; `load_state_dict` comes here as well
            self._hooks = None
            self._listen()

    def state_dict(self) -> dict[str, Any]:
        """All that there is between two steps; gradients that wait for theirs are no part of it."""
        self._require_no_draw("state_dict()")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as the optimiser did whose state it is; no tensor is shared with it."""
        self._require_no_draw("load_state_dict()")
        require_fitting(self, state_dict)
        super().load_state_dict(copy.deepcopy(state_dict))
        keep_precision(self, state_dict)
        self._set("method", type(self).__name__)
        self.ledger.clear()

    # --- the answer ---

    def posterior(self, model: BayesianModel) -> Posterior:
        """What was inferred, as a posterior of a model of the same network.

        Args:
            model: `pl.BayesianModel(network, likelihood, prior)`, with the likelihood that the loss was of and the prior
                N(0, 1 / prior_precision). Statistics of norm layers are those that the network has now;
                `posterior.refresh(data)` gathers them anew for every draw.
        """
        return answer(self, model)
