"""What all optimisers share: drawing weights and putting them back, counting examples and draws, state, posteriors.

The weights that the network has between steps are the mean of q, unless `train()` holds a draw there. All numbers follow
the mean negative log likelihood of an example, so that a learning rate means what it means in any PyTorch loop.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Posterior
from ..core.run import BANK
from ..curvature.passes import Traced
from ..inference.natural_gradient.gaussian_prior import GaussianPrior
from ..weights.algebra import Weights
from ..weights.rng import Keys, run_key
from .groups import group_weights, grouped, warn_of_another_prior
from .ledger import Ledger, averaged_
from .measured import require_finite_gradients
from .watcher import watch
from .witness import NAME, Witness


class Part(NamedTuple):
    """The weights of one parameter group that have a gradient.

    Attributes:
        group: Its numbers.
        params: The mean (or the point of a chain), to be written into.
        gradient: Of the mean negative log likelihood; the network's own tensors where nothing had to be multiplied.
        prior: Of these weights.
    """

    group: dict[str, Any]
    params: Weights
    gradient: Weights
    prior: GaussianPrior


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
        if not isinstance(network, nn.Module):
            raise TypeError(f"the first argument is the network, a torch.nn.Module, got {type(network).__name__}")
        require(num_data > 0, f"num_data must be the number of training examples, got {num_data}")
        require(reduction in ("mean", "sum"), f'reduction must be "mean" or "sum", got {reduction!r}')
        require(num_samples >= 1, f"num_samples must be at least 1, got {num_samples}")
        require(numbers["lr"] > 0, f"lr must be positive, got {numbers['lr']}")
        self.network, self.reduction = network, reduction
        self.ledger = Ledger()  # one object: frameworks that wrap an optimiser copy its attributes
        names = {name: p for name, p in network.named_parameters() if p.requires_grad}
        require(bool(names), "the network has no weight with requires_grad=True, so nothing is unknown")
        for name, p in names.items():
            require(not p.is_complex(), f"{name} is complex; give the network its real and imaginary parts as weights")
        groups = grouped(names, prior_precision)
        self.witness = Witness(next(iter(names.values()))) if self.measures or self.remembers else None
        if self.witness is not None:
            groups[0]["params"].append((NAME, self.witness.parameter))
        told = {"num_data": num_data, "num_samples": num_samples, "prior_precision": 1.0, "seed": seed}
        super().__init__(groups, {**numbers, **told, "step": 0, "call": 0, "held": False})
        self.complete = True
        self._listen()

    def _listen(self) -> None:
        """Hook the network."""
        measures = self.witness is not None and not self.remembers  # at some steps, if not at this one
        if measures or self.reduction == "sum":
            watch(self.network, self)

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

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Run and differentiate the network at weights drawn from q; the mean is back at the end, whatever happens.

        Several of these before one step average over their draws.
        """
        if self.ledger.inside:
            raise RuntimeError("weights are drawn already: sampled() does not nest, and step(closure) draws by itself")
        weights = list(self.weights().values())
        if self.ledger.draws and all(p.grad is None for p in weights):  # cleared by network.zero_grad()
            self.ledger.clear()
        earlier: list[Tensor | None] | None = None
        if self.ledger.draws:
            earlier = [p.grad for p in weights]
            for p in weights:
                p.grad = None
        # Also where a draw is held, which comes back in the end.
        back = [p.detach().clone() for p in weights] if self.draws_weights else None
        mean = self.means() if self.held or back is None else dict(zip(self.weights(), back, strict=True))
        counted = False
        self.ledger.inside, self.ledger.mean = True, mean
        try:
            self._place_draw(mean)
            yield
            self._close_draw()
            self.ledger.close_draw()
            if earlier is not None:
                averaged_(weights, earlier, self.ledger.draws)
            counted = True
        finally:
            self.ledger.inside, self.ledger.mean = False, None
            if not counted:  # something was raised
                self.ledger.forget_draw()
                for p, before in zip(weights, earlier or [], strict=earlier is not None):
                    p.grad = before
            if back is not None:
                with torch.no_grad():
                    torch._foreach_copy_(weights, back)

    @torch.no_grad()
    def _place_draw(self, mean: Mapping[str, Tensor]) -> None:
        """Put a fresh draw into the network. In place: a backward pass through weights that are gone is then an error."""
        deviation = self._deviation(self._rng(self._spend()))
        if deviation is None:
            return
        weights = self.weights()
        torch._foreach_copy_(list(weights.values()), [mean[k] for k in weights])
        if deviation:
            torch._foreach_add_([weights[k] for k in deviation], list(deviation.values()))

    def train(self) -> None:
        """Hold a draw in the network from now on, and a fresh one after every step, for loops that call `step()` bare."""
        if not self.draws_weights or self.held:
            return
        mean = self.means()
        for k, p in self.weights().items():
            self.state[p]["mean"] = mean[k].detach().clone()
        self._set("held", True)
        self._place_draw(self.means())

    def eval(self) -> None:
        """Hold the mean in the network from now on."""
        if not self.held:
            return
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
        loss = None if closure is None else self._run(closure)
        if ledger.draws == 0:
            if self.held or not self.draws_weights:
                self._close_draw()
                ledger.close_draw()
            else:
                raise RuntimeError(
                    "no weights were drawn since the last step: run the network and backward inside `with "
                    "optimizer.sampled():`, give step a closure, or call optimizer.train() before the loop"
                )
        try:
            self._update(self._parts())
        finally:
            ledger.clear()
        self._set("step", self.param_groups[0]["step"] + 1)
        self._set("call", 0)
        if self.held:
            self._place_draw(self.means())
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            if self.held or not self.draws_weights:
                return closure()
            losses = []
            self.ledger.clear()  # of draws that an earlier closure left when it raised at a later one
            for _ in range(self.num_samples):
                with self.sampled():
                    losses.append(closure())
        if len(losses) == 1 or any(loss is None for loss in losses):
            return losses[-1]
        return sum(losses) / len(losses)

    def _parts(self) -> list[Part]:
        means, factor, parts = self.means(), self._gradient_factor(), []
        for group in self.param_groups:
            own = {k: p for k, p in group_weights(group).items() if p.grad is not None}
            for k, p in own.items():
                if p.grad.is_sparse:  # type: ignore[union-attr]
                    raise RuntimeError(f"the gradient of {k} is sparse; build the layer with sparse=False")
            gradients: list[Any] = [p.grad for p in own.values()]
            if factor != 1.0 and gradients:
                gradients = list(torch._foreach_mul(gradients, factor))
            require_finite_gradients(dict(zip(own, gradients, strict=True)), group["step"])
            if own:
                params = {k: means[k].detach() for k in own}
                prior = GaussianPrior(dict.fromkeys(own, group["prior_precision"]))
                parts.append(Part(group, params, dict(zip(own, gradients, strict=True)), prior))
        return parts

    def _gradient_factor(self) -> float:
        """What makes the gradients those of the mean loss."""
        if self.reduction == "mean":
            return 1.0
        if not self.ledger.done.examples:
            raise RuntimeError(
                'reduction="sum" counts the examples that the network was run on, and it was run on none since the last '
                'step; run network(inputs) itself, not its layers, or let the loss be a mean with reduction="mean"'
            )
        return self.ledger.draws / self.ledger.done.examples

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
        if "network" in state:  # of a copy; `load_state_dict` comes here as well
            self._listen()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as the optimiser did whose state it is; no tensor is shared with it."""
        super().load_state_dict(copy.deepcopy(state_dict))
        self.ledger.clear()

    # --- the answer ---

    def posterior(self, model: BayesianModel) -> Posterior:
        """What was inferred, as a posterior of a model of the same network.

        Args:
            model: `pl.BayesianModel(network, likelihood, prior)`, with the likelihood that the loss was of and the prior
                N(0, 1 / prior_precision). Statistics of norm layers are those that the network has now;
                `posterior.refresh(data)` gathers them anew for every draw.
        """
        if not isinstance(model, BayesianModel):
            raise TypeError(f"posterior(model) takes a pl.BayesianModel of the network, got {type(model).__name__}")
        own = {k: tuple(p.shape) for k, p in self.weights().items()}
        other = {k: tuple(w.shape) for k, w in model.start.items()}
        if own != other:
            differ = sorted(k for k in own.keys() | other.keys() if own.get(k) != other.get(k))
            raise ValueError(
                f"the model's unknowns must be the weights that were trained; they differ in {', '.join(differ)}: give "
                "pl.BayesianModel the same network and numbers for scales of noise and prior"
            )
        temperature = self.param_groups[0].get("temperature", 1.0)
        require(
            model.temperature == temperature,
            f"the model has temperature {model.temperature} and {type(self).__name__} had {temperature}; make them one",
        )
        warn_of_another_prior(type(self).__name__, self.param_groups, model)
        mean = self.means()
        answer = self._posterior(
            model.bound(num_data=float(self.num_data)), {k: mean[k].detach().clone() for k in model.start}
        )
        buffers = dict(self.network.named_buffers())
        fixed = {k: buffers[k].detach().clone() for k in model.network.statistics}
        if fixed:
            rows = len(answer) if answer.finite else BANK  # type: ignore[arg-type]
            answer.bank, answer.mean_bank = {k: v.expand(rows, *v.shape) for k, v in fixed.items()}, fixed
        return answer
