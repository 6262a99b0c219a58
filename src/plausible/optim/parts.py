"""What a step is made of: the weights that have a gradient, group by group, and that gradient of the mean loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..inference.natural_gradient.gaussian_prior import GaussianPrior
from ..weights.algebra import Weights
from .groups import group_weights
from .measured import require_finite_gradients

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer


class Part(NamedTuple):
    """The weights of one parameter group that have a gradient.

    Attributes:
        group: Its numbers.
        params: The mean (or the point of a chain), to be written into.
        gradient: Of the mean negative log likelihood, in float32 at least; the network's own tensors where nothing had to be
            multiplied.
        prior: Of these weights.
    """

    group: dict[str, Any]
    params: Weights
    gradient: Weights
    prior: GaussianPrior


def parts(optimizer: BayesianOptimizer) -> list[Part]:
    """One for every group with a gradient."""
    means, factor, found = optimizer.means(), _gradient_factor(optimizer), []
    for group in optimizer.param_groups:
        own = {k: p for k, p in group_weights(group).items() if p.grad is not None}
        for k, p in own.items():
            if p.grad.is_sparse:  # type: ignore[union-attr]
                raise RuntimeError(f"the gradient of {k} is sparse; build the layer with sparse=False")
        # Averages over many steps are lost in half precision.
        gradients: list[Any] = [p.grad if p.element_size() >= 4 else p.grad.float() for p in own.values()]  # type: ignore[union-attr]
        if factor != 1.0 and gradients:
            gradients = list(torch._foreach_mul(gradients, factor))
        require_finite_gradients(dict(zip(own, gradients, strict=True)), group["step"])
        if own:
            params = {k: means[k].detach() for k in own}
            prior = GaussianPrior(dict.fromkeys(own, group["prior_precision"]))
            found.append(Part(group, params, dict(zip(own, gradients, strict=True)), prior))
    return found


def _gradient_factor(optimizer: BayesianOptimizer) -> float:
    """What makes the gradients those of the mean loss."""
    if optimizer.reduction == "mean":
        return 1.0
    ledger = optimizer.ledger
    if not ledger.done.examples:
        raise RuntimeError(
            'reduction="sum" counts the examples that the network was run on, and it was run on none since the last '
            'step; run network(inputs) itself, not its layers, or let the loss be a mean with reduction="mean"'
        )
    return ledger.draws / ledger.done.examples


def require_examples(optimizer: BayesianOptimizer) -> None:
    """Raise where no example was measured, and say why that may be."""
    if optimizer.ledger.done.examples:
        return
    if all(p.grad is None for p in optimizer.weights().values()):
        raise RuntimeError(
            "no weight has a gradient, so there is no step to make: call backward on the loss after network(inputs), where "
            "weights are drawn inside the same draw, and step() before the gradients are cleared"
        )
    raise RuntimeError(
        "there are gradients, but none came back through a pass of the network since the last step; run network(inputs) "
        "itself, not its layers, in this process and with gradients on, or take pl.optim.IVON, which needs gradients alone"
    )
