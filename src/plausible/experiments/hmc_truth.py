"""How close methods come to the posterior itself: small networks, every method against long HMC (Izmailov et al., 2021).

Nothing was chosen by how close it comes: methods, priors and likelihoods are those of `plausible compare`, batches those of its
tables, and every method that trains or walks has about 5,000 updates, or an eighth of them where one is as much work as many.
The chains' length was chosen by their own R-hat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plausible as pl

from ..core.method import Method
from ..datasets.locations import cache_folder
from ..report.settings import METHODS as COMPARED
from ..tabular.training import CLIMB
from . import hmc_truth_order as order
from .hmc_truth_order import AGAIN
from .hmc_truth_problem import RUN, Problem, fitted, load_splits, scored, seeds_of, truths
from .study import Column, Outcome, Picture, Row, Study

METHODS: dict[str, Method] = {
    **{name: COMPARED[name] for name in ("map", "deep-ensemble", "swag", "multiswag")},
    "laplace": pl.Laplace(base=CLIMB),
    "laplace-last-layer": COMPARED["laplace"],
    **{
        name: COMPARED[name]
        for name in (
            "advi", "bayes-by-backprop", "mc-dropout", "concrete-dropout", "vogn", "ogn", "ivon", "kfac", "noisy-kfac",
            "natural-gradient-vi", "sgld", "sghmc", "cyclical-sgmcmc", "metropolis", "mala", "hmc", "nuts",
        )
    },
}  # fmt: skip
UPDATES = 5000
BY_HESSIAN = "natural-gradient-vi"
NOT_RUN = {
    # A step takes two Hessians and the eigenvectors of a matrix as large: a fraction of a second with Boston's 752 weights
    # and four seconds with the digits' 2,260, on every split.
    ("digits", BY_HESSIAN),
}


@dataclass(frozen=True, kw_only=True)
class TruthRow(Row):
    """A method on a problem.

    Attributes:
        method: One of `METHODS`, or "hmc-again".
        problem: What it is fitted to, and how the truth is found.
    """

    method: str
    problem: Problem


def run(row: TruthRow, root: Path | None) -> Outcome:
    """Fit every split at once, and hold each prediction against that of the split's long chains."""
    problem = row.problem
    cache = cache_folder(None) if row.full else None
    sets, known = load_splits(problem, root), truths(problem, root, 0, cache)
    details: dict[str, Any] = {}
    if row.method == AGAIN:
        again = truths(problem, root, 1, cache)
        predictions = [truth.predictive for truth in again]
        details["mixing"] = [truth.mixing for truth in (*known, *again)]
        seeds = [seed for number in (1, 2) for seed in seeds_of(problem, problem.chains, number * RUN)]
    else:
        method = METHODS[row.method]
        found = fitted(problem, sets, method, epochs=row.epochs)
        predictions = [p.predict(s.x_test, num_samples=problem.samples) for p, s in zip(found, sets, strict=True)]
        seeds = seeds_of(problem, method.unfold()[1] or 1)
    each = [scored(p, t.predictive, s) for p, t, s in zip(predictions, known, sets, strict=True)]
    return Outcome(
        scores={name: [scores[name] for scores in each] for name in each[0]},
        seeds=seeds,
        details=details,
    )


def toy(row: TruthRow) -> TruthRow:
    """Two splits of a few examples, a narrow network, a few steps and short chains."""
    small = replace(
        row.problem, splits=2, train=40, limit=40, hidden=4, samples=16, chains=2, transitions=12, thin=1,
        trajectory_length=0.2,
    )  # fmt: skip
    if row.method == AGAIN:
        return replace(row, full=False, epochs=small.transitions, problem=small)
    # Long enough for a chain that keeps few of its draws to keep some.
    return replace(row, full=False, epochs=max(10, 4 * getattr(METHODS[row.method], "thin", 1)), problem=small)


def epochs_of(method: str, problem: Problem, passes: int) -> int:
    """Passes over the data; a sampler that sees all of it at a time makes one step a pass.

    Args:
        method: As `TruthRow` has it.
        problem: What it is fitted to.
        passes: Those in which a method of batches makes 5,000 updates. `hmc` and `nuts` have as many transitions, since each of
            them is many updates; so is a step by the Hessian, of which there are about as many.
    """
    if method == AGAIN:
        return problem.transitions
    if method == BY_HESSIAN:
        return passes * passes // UPDATES
    own = METHODS[method]
    return UPDATES if own.full_batch and own.slopes_per_step == 1 else passes


PROBLEMS = {
    "digits": (Problem(data="digits", hidden=30), 625),
    "boston": (Problem(data="bostonHousing"), 625),
}
ROWS = tuple(
    TruthRow(
        name=f"{name}-{method}", method=method, problem=problem, epochs=epochs_of(method, problem, passes)
    )
    for name, (problem, passes) in PROBLEMS.items()
    for method in (AGAIN, *METHODS)
    if (name, method) not in NOT_RUN
)  # fmt: skip


def findings(results: Mapping[str, Any]) -> Sequence[str]:
    """What came out, problem by problem."""
    return order.findings(results, list(PROBLEMS))


def draw(results: Mapping[str, Any], path: Path) -> None:
    """The digits beside the paper's."""
    order.draw(results, path, "digits")


STUDY = Study(
    name="hmc-truth",
    title="How close methods come to the posterior",
    paper="What are Bayesian neural network posteriors really like? Izmailov, Vikram, Hoffman & Wilson (2021)",
    about=(
        "Small networks with one hidden layer of tanh units: 64-30-10 for 500 handwritten digits of 8 x 8, judged on the other "
        "1,297, and 13-50-1 for Boston housing with noise of unknown scale. The posterior is found by eight long "
        "chains of HMC, a step of which is a transition with gradients of all data; every other method fits the same "
        "likelihood and prior at temperature 1, with the settings of `plausible compare` and about 5,000 updates, whatever "
        "they cost, and is held against what the chains predict. An ensemble and MultiSWAG have five networks; `laplace` is "
        "around all weights and `laplace-last-layer` around those of the output. `metropolis` and `mala` make 5,000 steps with "
        "all data, and `hmc` and `nuts` 625 transitions, each of which is many updates; all four are one chain that starts "
        "anywhere. A repetition has a split, a start and batches of its own, and chains of its own. `hmc-again` is the same "
        "chains with other seeds: nothing can be known to be closer than that."
    ),
    columns={
        "total_variation": Column(
            heading="total variation", form=".3f", better="low",
            meaning="distance of class probabilities, or of the density of a number, from the truth's, 0 to 1",
        ),
        "agreement": Column(
            heading="agreement", form=".4f", better="high", meaning="share of test examples with the truth's class",
            everywhere=False,
        ),
        "spread": Column(
            heading="sd gap", form=".2f", better="low",
            meaning="mean difference from the truth of the deviation over networks of a class's probability, or of a number's "
            "predicted deviation, as a share of the truth's",
        ),
        "centre": Column(
            heading="mean gap", form=".2f", better="low",
            meaning="mean difference of predicted means from the truth's, as a share of its mean predicted deviation",
            everywhere=False,
        ),
        "accuracy": Column(
            heading="accuracy", form=".4f", better="high", meaning="share of right classes", everywhere=False
        ),
        "rmse": Column(
            heading="RMSE", form=".3f", better="low", meaning="of the mean, in the target's units", everywhere=False
        ),
        "log_likelihood": Column(
            heading="log likelihood", form=".3f", better="high", meaning="of a test example, in nats",
        ),
    },
    rows=ROWS,
    published={},
    differences=(
        "networks of 752 and 2,260 weights on small data; the paper has a ResNet-20 on CIFAR-10, so orders can be compared and "
        "numbers cannot",
        "eight chains with adapted step sizes and masses; the paper has three with one step size for all weights, 240 draws each",
        "this library's settings, the same for all data; the paper tunes step sizes and schedules on held-out data",
        "five networks in an ensemble, the paper has fifty; one chain of SGLD, the paper has five; mean-field VI from a random "
        "start, the paper's starts where SGD ended; Adam where the paper has SGD",
        "`hmc-again` is a whole second truth, eight chains more",
        "rounding leads chains on a GPU elsewhere than on a CPU: rows of two devices are held against two runs of the chains, "
        "which differ as `hmc-again` does",
        "`natural-gradient-vi` has 624 updates, and is not run on digits: each takes two Hessians and the eigenvectors of a "
        "matrix as large, which for 2,260 weights and five splits would be hours",
    ),
    repetition="split",
    run=run,
    toy=toy,
    pictures=(
        Picture(
            name="agreement",
            caption="Agreement with HMC, as the share of other classes, and total variation from it: published (left) and on "
            "digits (right, with two standard errors); squares are methods of both, hollow marks of this study alone",
            needs=[row.name for row in ROWS if row.problem.data == "digits"],
            draw=draw,
        ),
    ),
    findings=findings,
)  # fmt: skip
