"""A look back when a run is over: at targets in units that no run could reach, and by methods that judge their own outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..weights.algebra import Weights
from .diagnostics import Diagnostics, together
from .likelihoods import HeteroscedasticNormal, Normal, StudentT
from .model import BayesianModel
from .posteriors import Posterior

log = logging.getLogger("plausible")

# Examples that a look back sees where data are at hand: at the most, and the share of those that steps have gone through.
SHOWN, SHARE = 1024, 32
JUDGED = (Normal, HeteroscedasticNormal, StudentT)
NORMAL = 1.4826  # deviations of a normal in its median distance from the middle
LARGE = 5.0  # root mean square of targets from which units may be why nothing is learnt
FEWEST = 16  # examples that say so
ASTRAY, HARDLY = 1.0, 0.7  # deviations of the targets, by which predictions are off on average, or each of them is,
FLAT, MANY = 0.97, 64  # or each is so far that, in so many examples, nothing is known
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


def review(method: Any, answer: Posterior, start: Weights, shown: Callable[[], Any], steps: int) -> None:
    """Add to an answer's diagnostics what can be said of it now.

    Args:
        method: Of the run.
        answer: Of one mode.
        start: The weights that the mode started from.
        shown: Gives some training data, in a moment or two.
        steps: How many were made.
    """
    model = answer.model
    numbers = isinstance(model, BayesianModel) and isinstance(model.likelihood, JUDGED)
    if not isinstance(method, Reviewing) and not numbers:
        return
    try:
        batch = shown() if steps and isinstance(model, BayesianModel) else None
    except Exception as error:  # noqa: BLE001 - a run that is over is not lost for a remark, as on a stream that has run out
        _say_of(error)
        batch = None
    try:
        if isinstance(method, Reviewing):
            method.reviewed(answer, start, batch, steps)
        if numbers and (strange := strange_units(answer, batch)) is not None:
            answer._diagnostics = together(answer._diagnostics, strange)
            log.warning("%s: %s", type(method).__name__, strange.messages[0])
    except Exception as error:  # noqa: BLE001 - a likelihood of the user's may fail where nothing was trained
        _say_of(error)


def _say_of(error: Exception) -> None:
    log.warning(
        "nothing is said of how the posterior predicts training data, which failed: %s: %s", type(error).__name__, error
    )


def strange_units(answer: Posterior, batch: Any) -> Diagnostics | None:
    """Whether targets are large numbers of which little but their mean is known, if that.

    That alone may be all there is to know. It is wrong where not even their mean is known, or the noise is said to be far
    smaller. Of heavy tails only the first is asked, and of medians; of other likelihoods squared residuals say little.
    """
    model = answer.model
    if batch is None or not isinstance(model, BayesianModel) or not isinstance(model.likelihood, JUDGED):
        return None
    inputs, targets, weights = batch
    if not targets.is_floating_point():
        return None
    said = slice(None) if weights is None else weights != 0
    y = targets[said].double()
    if len(y) < FEWEST or not float(y.square().mean()) ** 0.5 > LARGE:
        return None
    told = answer.predict(inputs, num_samples=DRAWS)
    if told.mean.shape != targets.shape:
        return None
    residuals, noise = y - told.mean[said].double(), told.aleatoric[said].double()
    heavy = isinstance(model.likelihood, StudentT)
    if heavy:
        centre, apart = y.median(0).values, residuals.median(0).values
        spread = ((y - centre).abs().median(0).values * NORMAL).square()
    else:
        centre, apart, spread = y.mean(0), residuals.mean(0), y.var(0)
    if not float(spread.sum()) > 0:
        return None
    astray = float(apart.square().sum()) > ASTRAY**2 * float(spread.sum())
    share = 0.0 if heavy else float(residuals.square().mean(0).sum()) / float(spread.sum())
    wrong = astray or (share > HARDLY**2 and float((residuals.square() / noise).mean()) > FAR**2)
    flat = len(y) >= MANY and share > FLAT**2
    if not wrong and not flat:
        return None
    message = (
        f"on {len(y)} training examples predictions are hardly nearer to the targets than the targets' own mean is; those have "
        f"mean {float(centre.mean()):.3g} and deviation {float(spread.mean()) ** 0.5:.3g}, where weights near one make outputs "
        "near one: standardise them, as by (y - y.mean()) / y.std()"
    )
    return Diagnostics(
        messages=(message if wrong else f"{message}, unless there is little more to know",), ok=not wrong
    )
