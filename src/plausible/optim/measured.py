"""What was measured since the last step, as averages; and what must not go unseen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..weights.algebra import Weights, wide_zeros

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

SELDOM = 100  # steps between two looks whether gradients on a GPU are finite, each of which waits for it


def averages(optimizer: BayesianOptimizer, what: str, power: int, names: Iterable[str]) -> Weights:
    """What was measured, as an average over examples and draws.

    Args:
        optimizer: Who measured.
        what: Its name in the ledger.
        power: How it grows with the gradient: products 1, squares 2.
        names: Of which weights; zeros where nothing was measured, because there was no gradient.
    """
    ledger, weights, names = optimizer.ledger, optimizer.weights(), list(names)
    found = ledger.done.tensors.get(what, {})
    require_measured(optimizer, (k for k in names if k not in found))
    values = [found[k] if k in found else wide_zeros(weights[k]) for k in names]
    count = ledger.draws if optimizer.reduction == "mean" else ledger.done.examples
    share, scaled = 1.0 / (count or 1), None if optimizer.witness is None else optimizer.witness.factor()
    if scaled is not None:
        factor = share * scaled.double() ** power
        return {k: v * factor.to(v.device, v.dtype) for k, v in zip(names, values, strict=True)}
    return dict(zip(names, torch._foreach_mul(values, share), strict=True))


def require_measured(optimizer: BayesianOptimizer, unseen: Iterable[str]) -> None:
    """Refuse gradients of weights of which nothing was measured: their curvature would be taken for zero."""
    weights = optimizer.weights()
    wrong = [k for k in unseen if (g := weights[k].grad) is not None and bool(g.any())]
    if wrong and optimizer.remembers:
        raise RuntimeError(
            f"{', '.join(wrong)}: a gradient came when the draw that it belongs to was gone; call backward, of penalties too, "
            "inside `with optimizer.sampled():`, and set gradients there"
        )
    if wrong:
        raise NotSupported(
            f"{', '.join(wrong)}: a gradient came back, but not through a pass of the network in which single examples "
            "could be told apart, as with activation checkpointing or a penalty on weights that the network does not use; "
            "keep these weights fixed with requires_grad_(False), let prior_precision be the penalty, or use pl.optim.IVON"
        )


def require_finite_gradients(gradients: Mapping[str, Tensor], step: int) -> None:
    """Raise before a gradient that is not finite makes weights so. On a GPU that is looked at now and then alone."""
    seldom = {k for k, g in gradients.items() if g.is_cuda}
    if seldom and (step % SELDOM or torch.cuda.is_current_stream_capturing()):
        gradients = {k: g for k, g in gradients.items() if k not in seldom}
    if not gradients:
        return
    finite = [g.isfinite().all() for g in gradients.values()]
    if bool(torch.stack([f.to(finite[0].device) for f in finite]).all()):  # one wait for all of them
        return
    name = next(k for k, f in zip(gradients, finite, strict=True) if not bool(f))
    lost = (
        f"; on a GPU it is looked for every {SELDOM} steps, so the weights may be lost: go back to a checkpoint"
        if name in seldom
        else ", and no step was made"
    )
    raise FloatingPointError(
        f"the gradient of {name} at step {step} is not finite{lost}. The batch has values that are not finite, or the learning "
        "rate is too large; of a loss in half precision, let a GradScaler make the steps"
    )
