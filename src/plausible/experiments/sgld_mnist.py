"""SGLD, plain and preconditioned, on MNIST: the small table of a fully connected network.

Nothing was chosen by a test part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import plausible as pl

from .study import Column, Outcome, Published, Row, Study


@dataclass(frozen=True, kw_only=True)
class SGLDRow(Row):
    """A sampler of the weights of a fully connected network.

    Attributes:
        preconditioned: Whether coordinates have step sizes of their own.
        rate: ε N, the learning rate on the mean loss.
        prior_scale: Deviation of the weights under the prior.
        hidden: Widths of the hidden layers.
        batch_size: Examples a step.
        draws: How many are kept.
        seeds: Runs.
        limit: Examples of each part, None for all.
    """

    preconditioned: bool = False
    rate: float = 0.1
    prior_scale: float = 0.1
    hidden: tuple[int, ...] = (1200, 1200)
    batch_size: int = 500
    draws: int = 100
    seeds: int = 1
    limit: int | None = None


def run_seed(row: SGLDRow, root: Path | None, seed: int) -> Outcome:
    """One chain, and the average over its draws on the test images."""
    data = pl.datasets.mnist(root, limit=row.limit)
    count = data.x_train.shape[0]
    steps = row.epochs * -(-count // row.batch_size)
    burn_in = steps // 2
    method = pl.SGLD(
        step_size=row.rate / count, preconditioned=row.preconditioned, burn_in=burn_in,
        thin=max(1, (steps - burn_in) // row.draws),
    )  # fmt: skip
    network = pl.networks.MLP(784, hidden=row.hidden, outputs=10)
    model = pl.BayesianModel(
        network, pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=row.prior_scale)
    )  # fmt: skip
    x, y = data.train
    posterior = pl.fit(
        model, (x.flatten(1), y), method, steps=steps, batch_size=row.batch_size, init="reset", seed=seed
    )
    predicted = posterior.predict(data.x_test.flatten(1), num_samples=row.draws)
    error = 100 * (1 - float(pl.metrics.accuracy(predicted.probs, data.y_test)))
    log_likelihood = float(predicted.log_prob(data.y_test).double().sum())
    return Outcome.of_seed(seed, {"error": error, "log_likelihood": log_likelihood})


def toy(row: SGLDRow) -> SGLDRow:
    """A narrow network, a few images and a few passes."""
    return replace(row, full=False, epochs=4, hidden=(20,), batch_size=50, draws=5, limit=200)


PLAIN = SGLDRow(name="sgld", epochs=100)
STUDY = Study(
    name="sgld-mnist",
    title="SGLD on MNIST",
    paper=(
        "Welling & Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Li, Chen, Carlson & Carin (2016), "
        "Preconditioned stochastic gradient Langevin dynamics for deep neural networks"
    ),
    about=(
        "A network with two hidden layers of 1200 ReLUs, a normal prior, and the average over 100 draws of one chain, judged on "
        "the 10,000 test images."
    ),
    columns={
        "error": Column(heading="error %", form=".2f", better="low", meaning="share of wrong labels"),
        "log_likelihood": Column(
            heading="log likelihood", form=".0f", better="high", meaning="summed over the test images"
        ),
    },
    rows=(PLAIN, replace(PLAIN, name="psgld", preconditioned=True, rate=1e-3)),
    published={
        "sgld": Published(values={"error": 1.76, "log_likelihood": -828}, epochs=100),
        "psgld": Published(values={"error": 1.76, "log_likelihood": -661}, epochs=100),
    },
    differences=(
        "the published numbers are those of a repository of reimplementations, not of the papers themselves",
        "a constant step size, 100 epochs, and 100 draws of the second half",
    ),
    repetition="seed",
    run_seed=run_seed,
    toy=toy,
)
