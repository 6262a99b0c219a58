"""Deep ensembles on UCI regression (Lakshminarayanan, Pritzel & Blundell, 2017, table 1).

How what the paper leaves open was chosen is said in `uci_regression`. Protein, by far the largest set, gets the paper's epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import plausible as pl

from ..datasets import Dataset
from . import uci_regression as uci
from .study import Column, Outcome, Published, Study

EPOCHS = 100
PUBLISHED_EPOCHS = 40


@dataclass(frozen=True, kw_only=True)
class EnsembleRow(uci.UCIRow):
    """A data set; the defaults are those of every row.

    Attributes:
        members: Networks in the ensemble.
        schedule: Of the learning rate.
    """

    members: int = 5
    schedule: str = "cosine"


def run(row: EnsembleRow, root: Path | None) -> Outcome:
    """Five networks for each split, all splits at once."""
    method = pl.MAP(optimizer="adam", learning_rate=row.learning_rate, schedule=row.schedule)

    def fit(sets: list[Dataset]) -> list[pl.Posterior]:
        return [pl.mixture(members) for members in uci.fit_every_split(row, sets, method, row.members)]

    return uci.outcome(row, root, fit, uci.seeds(row, row.members))


def published(rmse: float, nll: float) -> Published:
    """A line of the paper's table: one likelihood, which stands beside both of ours, and 40 epochs throughout."""
    return Published(values={"nll": nll, "gaussian_nll": nll, "rmse": rmse}, epochs=PUBLISHED_EPOCHS)


BOSTON = EnsembleRow(name="boston", data="bostonHousing", epochs=EPOCHS)
STUDY = Study(
    name="ensemble-uci",
    title="Deep ensembles on UCI regression",
    paper=(
        "Lakshminarayanan, Pritzel & Blundell (2017), "
        "Simple and scalable predictive uncertainty estimation using deep ensembles"
    ),
    about=(
        "Five networks with one hidden layer of 50 ReLUs (protein: 100) predict the mean and the noise of the target; their "
        "equal mixture is judged on the test parts of the 20 standard splits (protein: 5). Inputs and targets are standardised "
        "on the training part; scores are in the target's own units."
    ),
    columns={
        "nll": Column(heading="NLL", form=".3f", better="low", meaning="negative log likelihood of the true mixture"),
        "gaussian_nll": Column(
            heading="Gaussian NLL",
            form=".3f",
            better="low",
            meaning="negative log likelihood of the normal with the mixture's mean and variance, which the paper reports",
        ),
        "rmse": Column(heading="RMSE", form=".3f", better="low", meaning="root mean squared error of the mean"),
    },
    rows=(
        BOSTON,
        replace(BOSTON, name="yacht", data="yacht"),
        replace(BOSTON, name="concrete", data="concrete"),
        replace(BOSTON, name="kin8nm", data="kin8nm"),
        replace(BOSTON, name="protein", data="protein-tertiary-structure", splits=5, hidden=100, epochs=40),
    ),
    published={
        "boston": published(rmse=3.28, nll=2.41),
        "concrete": published(rmse=6.03, nll=3.06),
        "kin8nm": published(rmse=0.09, nll=-1.20),
        "protein": published(rmse=4.71, nll=2.83),
        "yacht": published(rmse=1.58, nll=1.18),
    },
    differences=(
        "no adversarial training, which the paper leaves to the user",
        "Adam at a rate of 0.01 that falls to zero along a cosine",
        "a normal prior on the weights, narrower on those that give the noise; the paper has none",
        "NLL is of the true mixture; the paper's is of the normal with the mixture's mean and variance, as our second column",
        "the paper's standard errors are not used, so a difference counts in ours alone",
    ),
    repetition="split",
    run=run,
    toy=uci.toy,
)
