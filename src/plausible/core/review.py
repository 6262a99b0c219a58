"""A look back when a run is over: at targets in units that no run could reach, and by methods that judge their own outcome."""

from __future__ import annotations

import logging
from typing import Any, Protocol, runtime_checkable

from ..weights.algebra import Weights
from .diagnostics import Diagnostics, together
from .likelihoods import Poisson
from .model import BayesianModel
from .posteriors import Posterior

log = logging.getLogger("plausible")

LARGE = 5.0  # root mean square of targets from which units may be why nothing is learnt
DRAWS = 8


@runtime_checkable
class Reviewing(Protocol):
    """A method that has more to say of its answer once it can predict."""

    def reviewed(self, answer: Posterior, start: Weights, batch: Any, steps: int) -> None:
        """Add to the answer's diagnostics.

        Args:
            answer: Of one mode.
            start: The weights that the mode started from.
            batch: One that an epoch began with, without augmentation; None where there are no data.
            steps: How many were made.
        """


def review(method: Any, answer: Posterior, start: Weights, batch: Any, steps: int) -> None:
    """Add to an answer's diagnostics what can be said of it now; see `Reviewing.reviewed` for the arguments."""
    try:
        if isinstance(method, Reviewing):
            method.reviewed(answer, start, batch, steps)
        if steps and (strange := strange_units(answer, batch)) is not None:
            answer._diagnostics = together(answer._diagnostics, strange)
            log.warning("%s: %s", type(method).__name__, strange.messages[0])
    except Exception as error:  # noqa: BLE001 - a likelihood of the user's may fail where nothing was trained
        log.warning("nothing is said of how the posterior predicts training data, which failed: %s", error)


def strange_units(answer: Posterior, batch: Any) -> Diagnostics | None:
    """Whether targets are large numbers of which nothing but their mean is known, if that."""
    model = answer.model
    if batch is None or not isinstance(model, BayesianModel) or isinstance(model.likelihood, Poisson):
        return None
    inputs, targets, weights = batch
    if getattr(model.likelihood, "task", None) != "regression" or not targets.is_floating_point() or len(targets) < 2:
        return None
    y = targets if weights is None else targets[weights != 0]
    if len(y) < 2 or not float(y.double().square().mean()) ** 0.5 > LARGE:
        return None
    mean = answer.predict(inputs, num_samples=DRAWS).mean
    if mean.shape != targets.shape:
        return None
    found = (mean if weights is None else mean[weights != 0]).double()
    centre, spread = y.double().mean(0), y.double().var(0)
    if float((found - y).square().mean(0).sum()) < float(spread.sum()):
        return None
    said = (
        f"on {len(y)} training examples predictions are no nearer to the targets than the targets' own mean is; those have "
        f"mean {float(centre.mean()):.3g} and deviation {float(spread.mean()) ** 0.5:.3g}, where weights near one make outputs "
        "near one: standardise them, as by (y - y.mean()) / y.std()"
    )
    return Diagnostics(messages=(said,), ok=False)
