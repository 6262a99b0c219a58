"""A look back when a run is over: at targets in units that no run could reach, and by methods that judge their own outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..weights.algebra import Weights
from .diagnostics import Diagnostics, together
from .likelihoods import HeteroscedasticNormal, Normal
from .model import BayesianModel
from .posteriors import Posterior

log = logging.getLogger("plausible")

LARGE = 5.0  # root mean square of targets from which units may be why nothing is learnt
FEWEST = 16  # examples that say so
ASTRAY, HARDLY = 1.0, 0.7  # deviations of the targets, by which predictions are off on average, or each of them is,
FAR = 3.0  # and of the noise, by which each is as well
DRAWS = 8


@runtime_checkable
class Reviewing(Protocol):
    """A method that has more to say of its answer once it can predict."""

    def reviewed(self, answer: Posterior, start: Weights, batch: Any, steps: int) -> None:
        """Add to the answer's diagnostics.

        Args:
            answer: Of one mode.
            start: The weights that the mode started from.
            batch: What an epoch began with, without augmentation; None where there are no data.
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
        _say_of(error)


def looked_up(batch: Callable[[], Any]) -> Any:
    """The batch that a look back is to see; None where it is to be had no more, as of a stream that has run out."""
    try:
        return batch()
    except Exception as error:  # noqa: BLE001 - a run that is over is not lost for a remark
        _say_of(error)
        return None


def _say_of(error: Exception) -> None:
    log.warning(
        "nothing is said of how the posterior predicts training data, which failed: %s: %s", type(error).__name__, error
    )


def strange_units(answer: Posterior, batch: Any) -> Diagnostics | None:
    """Whether targets are large numbers of which little but their mean is known, if that.

    That alone may be all there is to know. Here either not even their mean is, or the noise is said to be far smaller. Of other
    likelihoods than normal ones squared residuals say little.
    """
    model = answer.model
    if batch is None or not isinstance(model, BayesianModel):
        return None
    inputs, targets, weights = batch
    if not isinstance(model.likelihood, Normal | HeteroscedasticNormal) or not targets.is_floating_point():
        return None
    said = slice(None) if weights is None else weights != 0
    y = targets[said].double()
    if len(y) < FEWEST or not float(y.square().mean()) ** 0.5 > LARGE:
        return None
    told = answer.predict(inputs, num_samples=DRAWS)
    if told.mean.shape != targets.shape:
        return None
    residuals, noise = y - told.mean[said].double(), told.aleatoric[said].double()
    centre, spread = y.mean(0), y.var(0)
    astray = float(residuals.mean(0).square().sum()) > ASTRAY**2 * float(spread.sum())
    hardly = float(residuals.square().mean(0).sum()) > HARDLY**2 * float(spread.sum())
    if not astray and not (hardly and float((residuals.square() / noise).mean()) > FAR**2):
        return None
    message = (
        f"on {len(y)} training examples predictions are hardly nearer to the targets than the targets' own mean is; those have "
        f"mean {float(centre.mean()):.3g} and deviation {float(spread.mean()) ** 0.5:.3g}, where weights near one make outputs "
        "near one: standardise them, as by (y - y.mean()) / y.std()"
    )
    return Diagnostics(messages=(message,), ok=False)
