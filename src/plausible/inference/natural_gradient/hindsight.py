"""What a run's outcome says of training data, beside what it started from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.model import BayesianModel
from ...core.posteriors import Delta, Posterior
from ...core.predictive import Predictive
from ...core.refresh import statistics_of
from ...weights import tree
from ...weights.algebra import Weights

WORSE = 0.1  # nats an example, by which a step or two may well be worse than none


class Hindsight:
    """A method whose answers tell when no step made them, or when they predict worse than nothing would.

    Numbers may stay finite while steps that are too long take the weights anywhere; the log joint then says little, since that
    of wide draws of many weights is low where all is well. What is told apart is how well the mean predicts training data: that
    draws are too wide for a network is another matter.
    """

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
            answer._diagnostics = together(answer._diagnostics, _compared(answer, start, batch, rate))


def together(*found: Diagnostics | None) -> Diagnostics | None:
    """All messages; None where nothing is said."""
    said = [d for d in found if d is not None]
    if len(said) < 2:
        return said[0] if said else None
    table = {k: row for d in said for k, row in d.table.items()}
    return Diagnostics(tuple(m for d in said for m in d.messages), table, all(d.ok for d in said))


def _compared(answer: Posterior, start: Weights, batch: Any, rate: float | None) -> Diagnostics | None:
    """Whether the posterior predicts a batch worse than both the run's start and outputs of zero."""
    inputs, targets, weights = batch
    told, first = (_at(answer.model, params, inputs) for params in (answer.mean, start))
    zero = Predictive(torch.zeros_like(first.outputs), first.likelihood, unknowns=first.unknowns)
    found, began, nothing = (_mean_log_prob(p, targets, weights) for p in (told, first, zero))
    references = [r for r in (began, nothing) if r == r]
    # Not `<`: outputs that overflow have no log probability at all.
    if not references or found >= min(references) - WORSE:
        return None
    size = len(targets) if weights is None else int((weights != 0).sum())
    shorter = "" if rate is None else f"try a tenth of learning_rate={float(rate):.3g}, or "
    said = (
        f"on {size} training examples the mean of the posterior has a mean log probability of {found:.3g}, outputs of zero have "
        f"{nothing:.3g} and the weights that the run started from {began:.3g}, so it has lost what there was; most likely steps "
        f"were too long: {shorter}more steps or a narrower prior"
    )
    return Diagnostics(messages=(said,), ok=False)


def _at(model: BayesianModel, params: Weights, inputs: Any) -> Predictive:
    """What one set of weights predicts, with norm statistics of the same inputs."""
    point = Delta(model, params)
    if model.network.statistics:
        point.bank = tree.tree_map(lambda t: t.unsqueeze(0), statistics_of(model, params, [inputs]))
    return point.predict(inputs)


def _mean_log_prob(predictive: Predictive, targets: Any, weights: Tensor | None) -> float:
    """Over the examples that have a say."""
    each = predictive.log_prob(targets).double()
    return float(each.mean() if weights is None else each[weights != 0].mean())
