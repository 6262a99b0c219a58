"""What a run's outcome says of training data, beside what it started from."""

from __future__ import annotations

import logging
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core import batch as batches
from ...core.diagnostics import Diagnostics, together
from ...core.likelihoods import Normal, StudentT
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
WIDE = 0.5  # and by which predictions averaged over draws may be worse than that at their mean;
# as much as that one's own distance from certainty, and a tenth, where no draw was ever tried in training
LEAST_WIDE = 0.1
BETTER, SLIGHT = 0.01, 0.05  # and by which something learnt is better than the classes' frequencies, or may at most be
SURE = 3.0  # standard errors
CLIPPED = 2.0  # nats of one example, of which a mean cannot be made by a few
FEWEST, FEWEST_OF_A_CLASS = 16, 5  # examples that say how often classes occur
FAR = 3.0  # deviations of the noise, by which residuals may be larger than it on average
DRAWS = 8
BLOCK = 128  # examples at a time, of which norm layers take their statistics


class Hindsight:
    """A method whose answers tell when no step made them, or when they predict worse than nothing would.

    Numbers may stay finite while steps that are too long take the weights anywhere, or while draws are so wide that a network
    learns nothing under them; the log joint then says little, since that of wide draws of many weights is low where all is well.
    """

    tries_draws: ClassVar[bool] = True  # whether gradients are taken at draws
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
                at_mean = _at(answer.model, answer.mean, batch[0])
                found = _lost(answer, at_mean, start, batch, rate) or _nothing_learnt(
                    answer, at_mean, batch, self.narrower if self.tries_draws else None
                )
                if found is None:
                    drawn = answer.predict(batch[0], num_samples=DRAWS)
                    found = _far_from_data(answer, at_mean, drawn, batch) or _too_wide(
                        answer, at_mean, drawn, batch, self.narrower, self.tries_draws
                    )
            for said in () if found is None else found.messages:
                log.warning("%s: %s", name, said)
            answer._diagnostics = together(answer._diagnostics, found)


def _lost(answer: Posterior, at_mean: Predictive, start: Weights, batch: Any, rate: float | None) -> Diagnostics | None:
    """Whether the posterior's mean predicts worse than both the run's start and outputs of zero."""
    inputs, targets, weights = batch
    first = _at(answer.model, start, inputs)
    zero = Predictive(torch.zeros_like(first.outputs), first.likelihood, unknowns=first.unknowns)
    found, began, nothing = (_log_probs(p, targets, weights) for p in (at_mean, first, zero))
    references = [r for r in (began, nothing) if bool(r.isfinite().all())]
    if not references or not all(_is_worse(found, r, WORSE) for r in references):
        return None
    shorter = "" if rate is None else f"try a tenth of learning_rate={float(rate):.3g}, or "
    return _warning(
        f"{_of_mean(found)}, outputs of zero have {float(nothing.mean()):.3g} and the weights that the run started from "
        f"{float(began.mean()):.3g}, so it has lost what there was; most likely steps were too long: {shorter}more steps or a "
        "narrower prior"
    )


def _nothing_learnt(answer: Posterior, at_mean: Predictive, batch: Any, narrower: str | None) -> Diagnostics | None:
    """Whether the posterior's mean knows no more of classes than how often each occurs.

    Args:
        answer: Of the run.
        at_mean: What its mean predicts.
        batch: Training data.
        narrower: What holds draws narrower, None where the run has tried none.
    """
    inputs, targets, weights = batch
    if task(answer.model) != "classification" or targets.dim() != 1 or targets.is_floating_point():
        return None
    labels = targets if weights is None else targets[weights != 0]
    ignored = getattr(answer.model.likelihood, "ignore_index", None)
    told = (labels >= 0) & (labels != (-1 if ignored is None else ignored))
    y = labels[told]
    counts = y.bincount().double()
    seen = int((counts > 0).sum())
    if seen < 2 or len(y) < max(FEWEST, FEWEST_OF_A_CLASS * seen):  # a few labels say more of themselves than of others
        return None
    found = _log_probs(at_mean, targets, weights)[told]
    each = (counts / len(y)).log()[y]
    # By which so many labels' own frequencies are nearer to them (Miller & Madow).
    known = float(each.mean()) - (seen - 1) / (2 * len(y))
    gain, sure = float(found.mean()) - known, SURE * float((found - each).std()) / len(y) ** 0.5
    # Where nearly all are of one class there is little to gain.
    most, slight = (min(few, share * -known) for few, share in ((BETTER, 0.1), (SLIGHT, 0.5)))
    if not bool(found.isfinite().all()) or not (gain <= most and gain + sure <= slight):
        return None
    more = "more steps or a larger learning_rate may help"
    if narrower is not None:
        more = f"draws are too wide for this network to learn under: {narrower}"
    return _warning(
        f"{_of_mean(found)}, no more than how often each class occurs ({known:.3g}); where pl.MAP learns more, {more}"
    )


def _far_from_data(answer: Posterior, at_mean: Predictive, drawn: Predictive, batch: Any) -> Diagnostics | None:
    """Whether residuals at the posterior's mean are far larger than the noise that they are said to be, or learnt to be."""
    _, targets, weights = batch
    model = answer.model
    if not isinstance(model, BayesianModel) or not isinstance(model.likelihood, Normal | StudentT):
        return None
    rows = slice(None) if weights is None else weights != 0
    ratio = ((targets - at_mean.mean).double().square() / at_mean.aleatoric.double())[rows]
    heavy = isinstance(model.likelihood, StudentT)  # of whose residuals a few are expected to be large
    far = float(ratio.median() if heavy else ratio.mean()) ** 0.5
    # What a noise is learnt from are residuals of draws, which may be far larger than those of their mean.
    residuals = ((targets - drawn.mean).double().square() + drawn.epistemic.double())[rows]
    near = float((residuals / drawn.aleatoric.double()[rows]).mean()) ** 0.5
    if near < 1 / FAR and not heavy and any(k.startswith("likelihood.") for k in model.hyperpriors):
        return _warning(
            f"on {len(ratio)} training examples the noise that was learnt is {1 / near if near else math.inf:.3g} times the "
            "residuals: more steps may bring it down to them, if the network does not just remember its data; so do targets near "
            "one, as (y - y.mean()) / y.std() are"
        )
    if not far > FAR:  # nor where the noise has no variance
        return None
    return _warning(
        f"on {len(ratio)} training examples residuals at the mean of the posterior are {far:.3g} times the noise's deviation: "
        "the noise is larger than the likelihood has it, or the run has not come near the data; more steps may, or pl.MAP as init"
    )


def _too_wide(
    answer: Posterior, at_mean: Predictive, drawn: Predictive, batch: Any, way_out: str, tried: bool
) -> Diagnostics | None:
    """Whether predictions averaged over draws are far worse than that at their mean."""
    _, targets, weights = batch
    mean, averaged = (_log_probs(p, targets, weights) for p in (at_mean, drawn))
    by = WIDE
    if not tried and task(answer.model) == "classification":
        by = min(WIDE, max(LEAST_WIDE, -float(mean.mean())))
    if not _is_worse(averaged, mean, by):
        return None
    return _warning(
        f"on {len(mean)} training examples predictions averaged over draws have a mean log probability of "
        f"{float(averaged.mean()):.3g}, and the network at their mean has {float(mean.mean()):.3g}: draws are too wide for this "
        f"network: {way_out}{'' if tried else '; pl.posteriors.Delta(model, posterior.mean) predicts at the mean'}"
    )


def _of_mean(found: Tensor) -> str:
    return f"on {len(found)} training examples the mean of the posterior has a mean log probability of {float(found.mean()):.3g}"


def _warning(said: str) -> Diagnostics:
    return Diagnostics(messages=(said,), ok=False)


def _is_worse(found: Tensor, other: Tensor, by: float) -> bool:
    """Whether log probabilities of the same examples are lower, by more than a mean of so many may be by chance."""
    if not bool(found.isfinite().all()):  # outputs that overflow have none at all
        return bool(other.isfinite().all())
    # Of a few draws that are sure of something else an average may be far off in some examples, so that no mean says much.
    gaps = (other - found, (other - found).clamp(max=CLIPPED))
    return len(found) > 1 and any(float(g.mean()) > by + SURE * float(g.std()) / len(g) ** 0.5 for g in gaps)


def _at(model: BayesianModel, params: Weights, inputs: Any) -> Predictive:
    """What one set of weights predicts, with norm statistics of the same inputs."""
    point = Delta(model, params)
    if model.network.statistics:
        count = batches.length(inputs)
        blocks = [batches.rows(inputs, slice(i, i + BLOCK)) for i in range(0, count, BLOCK)]
        point.bank = tree.tree_map(lambda t: t.unsqueeze(0), statistics_of(model, params, blocks))
    return point.predict(inputs)


def _log_probs(predictive: Predictive, targets: Any, weights: Tensor | None) -> Tensor:
    """Of the examples that have a say."""
    each = predictive.log_prob(targets).double()
    return each if weights is None else each[weights != 0]
