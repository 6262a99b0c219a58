"""What a run's outcome says of training data, beside what it started from."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.model import BayesianModel
from ...core.posteriors import Delta, Posterior
from ...core.predictive import Predictive
from ...core.refresh import statistics_of
from ...curvature.eager import without_advice
from ...weights import tree
from ...weights.algebra import Weights
from .start import task

log = logging.getLogger("plausible")

WORSE = 0.1  # nats an example, by which a step or two may well be worse than none
WIDE = 0.5  # and by which predictions averaged over draws may be worse than that at their mean
BETTER = 0.01  # and by which something learnt is better than the classes' frequencies
SURE = 3.0  # standard errors
FEWEST = 16  # examples that say how often classes occur
DRAWS = 8


class Hindsight:
    """A method whose answers tell when no step made them, or when they predict worse than nothing would.

    Numbers may stay finite while steps that are too long take the weights anywhere, or while draws are so wide that a network
    learns nothing under them; the log joint then says little, since that of wide draws of many weights is low where all is well.
    """

    narrower: ClassVar[str] = "pl.VOGN(damping=0.3), or pl.IVON with a curvature_decay near 1, holds draws narrower"

    def reviewed(self, answer: Posterior, start: Weights, batch: Any, steps: int) -> None:
        """Add what is to be said to the answer's diagnostics.

        Args:
            answer: Of the run.
            start: The weights that it started from.
            batch: Training data as they are without augmentation, None where there are none.
            steps: That were made.
        """
        name, rate = type(self).__name__, getattr(self, "learning_rate", None)
        if not steps:
            said = (
                f"no step was made, so no data speak in this posterior, which {name} has put around the start of the run; give "
                "steps or epochs, or take pl.Laplace() for a trained network"
            )
            answer._diagnostics = Diagnostics(messages=(said,), ok=False)
        elif isinstance(answer.model, BayesianModel) and batch is not None:
            with without_advice():
                found = _lost(answer, start, batch, rate) or _nothing_learnt(answer, batch, self.narrower)
                wide = None if found else _too_wide(answer, batch, self.narrower)
            for told in (found, wide):
                for said in () if told is None else told.messages:
                    log.warning("%s: %s", name, said)
            answer._diagnostics = together(answer._diagnostics, found, wide)


def together(*found: Diagnostics | None) -> Diagnostics | None:
    """All messages; None where nothing is said."""
    said = [d for d in found if d is not None]
    if len(said) < 2:
        return said[0] if said else None
    table = {k: row for d in said for k, row in d.table.items()}
    return Diagnostics(tuple(m for d in said for m in d.messages), table, all(d.ok for d in said))


def _lost(answer: Posterior, start: Weights, batch: Any, rate: float | None) -> Diagnostics | None:
    """Whether the posterior's mean predicts worse than both the run's start and outputs of zero."""
    inputs, targets, weights = batch
    told, first = (_at(answer.model, params, inputs) for params in (answer.mean, start))
    zero = Predictive(torch.zeros_like(first.outputs), first.likelihood, unknowns=first.unknowns)
    found, began, nothing = (_log_probs(p, targets, weights) for p in (told, first, zero))
    references = [r for r in (began, nothing) if bool(r.isfinite().all())]
    if not references or not all(_is_worse(found, r, WORSE) for r in references):
        return None
    shorter = "" if rate is None else f"try a tenth of learning_rate={float(rate):.3g}, or "
    return _warning(
        f"{_of_mean(found)}, outputs of zero have {float(nothing.mean()):.3g} and the weights that the run started from "
        f"{float(began.mean()):.3g}, so it has lost what there was; most likely steps were too long: {shorter}more steps or a "
        "narrower prior"
    )


def _nothing_learnt(answer: Posterior, batch: Any, way_out: str) -> Diagnostics | None:
    """Whether the posterior's mean knows no more of classes than how often each occurs."""
    inputs, targets, weights = batch
    if task(answer.model) != "classification" or targets.dim() != 1 or targets.is_floating_point():
        return None
    y = targets if weights is None else targets[weights != 0]
    y = y[y >= 0]
    counts = y.bincount().double()
    if len(y) < FEWEST or int((counts > 0).sum()) < 2:
        return None
    found = _log_probs(_at(answer.model, answer.mean, inputs), targets, weights)
    known = float((counts[counts > 0] * (counts[counts > 0] / len(y)).log()).sum() / len(y))
    if not bool(found.isfinite().all()) or float(found.mean()) > known + BETTER:
        return None
    return _warning(
        f"{_of_mean(found)}, no more than how often each class occurs ({known:.3g}); where pl.MAP learns more, draws are too "
        f"wide for this network to learn under: {way_out}"
    )


def _too_wide(answer: Posterior, batch: Any, way_out: str) -> Diagnostics | None:
    """Whether predictions averaged over draws are far worse than that at their mean."""
    inputs, targets, weights = batch
    mean = _log_probs(_at(answer.model, answer.mean, inputs), targets, weights)
    averaged = _log_probs(answer.predict(inputs, num_samples=DRAWS), targets, weights)
    if not _is_worse(averaged, mean, WIDE):
        return None
    return _warning(
        f"on {len(mean)} training examples predictions averaged over draws have a mean log probability of "
        f"{float(averaged.mean()):.3g}, and the network at their mean has {float(mean.mean()):.3g}: draws are too wide for this "
        f"network: {way_out}"
    )


def _of_mean(found: Tensor) -> str:
    return f"on {len(found)} training examples the mean of the posterior has a mean log probability of {float(found.mean()):.3g}"


def _warning(said: str) -> Diagnostics:
    return Diagnostics(messages=(said,), ok=False)


def _is_worse(found: Tensor, other: Tensor, by: float) -> bool:
    """Whether log probabilities of the same examples are lower, by more than a mean of so many may be by chance."""
    if not bool(found.isfinite().all()):  # outputs that overflow have none at all
        return bool(other.isfinite().all())
    gap = other - found
    return len(gap) > 1 and float(gap.mean()) > by + SURE * float(gap.std()) / len(gap) ** 0.5


def _at(model: BayesianModel, params: Weights, inputs: Any) -> Predictive:
    """What one set of weights predicts, with norm statistics of the same inputs."""
    point = Delta(model, params)
    if model.network.statistics:
        point.bank = tree.tree_map(lambda t: t.unsqueeze(0), statistics_of(model, params, [inputs]))
    return point.predict(inputs)


def _log_probs(predictive: Predictive, targets: Any, weights: Tensor | None) -> Tensor:
    """Of the examples that have a say."""
    each = predictive.log_prob(targets).double()
    return each if weights is None else each[weights != 0]
