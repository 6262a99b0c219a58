"""From a table to a posterior that knows its columns, its units and how good it is."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from ..core import likelihoods, priors
from ..core.fit import fit
from ..core.method import Method
from ..core.model import BayesianModel
from ..inference.averaging import SWAG, MultiSWAG
from ..inference.laplace import Laplace
from ..inference.mcmc import HMC, MALA, NUTS, SGHMC, SGLD, CyclicalSGMCMC, Metropolis
from ..inference.natural_gradient import IVON, KFAC, OGN, VOGN, NaturalGradientVI, NoisyKFAC
from ..inference.point import MAP, DeepEnsemble
from ..inference.variational import ADVI, BayesByBackprop, ConcreteDropout, MCDropout
from ..networks import MLP
from ..weights.rng import forked
from .calibration import learn_calibration
from .fitted import NUM_SAMPLES, FittedTable
from .novelty import learn_novelty
from .preparation import TEST_SHARE, prepare
from .reading import Table, is_missing
from .scoring import held_out_scores
from .targets import Classes, Task

NETWORK = 0x6E6574  # the stream of a seed that initialises the network
HIDDEN = (64,)
BATCH_SIZE = 64
# Whichever is longer: a small table needs steps, a large one passes; but a very large one has enough after fewer.
FEWEST_STEPS, EPOCHS, MOST_STEPS = 1000, 20, 5000
SLOPES = 32_000  # of methods that see all data at every step: 500 transitions of HMC

# Measured on held-out rows. Numbers: the tighter prior keeps a learnt noise scale honest (with the wider one 90 %
# intervals of the Boston data held 84 %). Classes: the tighter one underfits (digits: 96.3 % right instead of 98.1 %).
NUMBER_PRIOR = priors.fan_in(priors.Normal(scale=1.0))
CLASS_PRIOR = priors.Normal(scale=1.0)

# Adam for all that climb: plain SGD, SWAG's usual base, drives a learnt noise scale to places it does not return from
# (on the yacht data its error was twenty times Adam's).
CLIMB = MAP(learning_rate=0.01)
METHODS: dict[str, Method] = {
    "map": CLIMB,
    "deep-ensemble": DeepEnsemble(base=CLIMB),
    "swag": SWAG(base=CLIMB),
    "multiswag": MultiSWAG(base=SWAG(base=CLIMB)),
    "laplace": Laplace(base=CLIMB, prior_precision="marginal-likelihood"),
    "advi": ADVI(),
    "bayes-by-backprop": BayesByBackprop(learning_rate=0.01),
    "mc-dropout": MCDropout(base=CLIMB),
    "concrete-dropout": ConcreteDropout(base=CLIMB),
    "vogn": VOGN(),
    "ogn": OGN(),
    "ivon": IVON(),
    "kfac": KFAC(),
    "noisy-kfac": NoisyKFAC(),
    "natural-gradient-vi": NaturalGradientVI(),
    "sgld": SGLD(),
    "sghmc": SGHMC(),
    "cyclical-sgmcmc": CyclicalSGMCMC(),
    "hmc": HMC(trajectory_length=0.5),
    "nuts": NUTS(max_depth=7),  # 127 leapfrogs; a network's posterior would have up to 1,023
    "mala": MALA(thin=32),
    "metropolis": Metropolis(thin=32),
}


def fit_table(
    table: Table,
    target: str,
    *,
    method: Method | str = "multiswag",
    task: Task | None = None,
    epochs: int | None = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
    calibrate: bool = True,
    progress: bool = True,
    prior: Any = None,
) -> FittedTable:
    """Learn to predict one column of a table from the others.

    Args:
        table: What `read_table` gives.
        target: The column to predict.
        method: A method such as `pl.MultiSWAG()`, or the name of one of `METHODS`.
        task: None to decide it by the target's values.
        epochs: Passes over the training rows; for methods that see all of them at a time, steps. None: long enough.
        test_share: Share of the rows that is held out and judged on; with 0 nothing is judged.
        seed: Every random number follows from it, the split too.
        calibrate: Correct how sure predictions are by what cross-fitting the training rows finds; about twice the time.
        progress: Show a bar.
        prior: Of the weights: one of `pl.priors`, or a text such as "hierarchical(laplace, inverse-gamma)". None takes one
            that suits most tables.
    """
    chosen = _method(method)
    believed = priors.from_string(prior) if isinstance(prior, str) else prior
    parts = prepare(table, target, task, test_share, seed)
    x, goal = parts.schema.encode(parts.train).x, parts.target
    outputs = len(goal.classes) if isinstance(goal, Classes) else 1
    model = _model(x.shape[1], outputs, goal.task, seed, believed)

    def tensors(rows: Table) -> tuple[Tensor, Tensor]:
        inputs = parts.schema.encode(rows).x
        return torch.tensor(inputs, dtype=torch.float32), goal.encode(rows.columns[target])

    began = time.perf_counter()
    length = _length(chosen, len(parts.train), epochs)
    data = tensors(parts.train)
    running: dict[str, Any] = {"batch_size": even_batch(len(x)), "seed": seed, "progress": progress, **length}
    posterior = fit(model, data, chosen, **running)
    calibration = None
    if calibrate:
        spare = tensors(parts.test)
        calibration = learn_calibration(model, data, spare, chosen, goal.task, num_samples=NUM_SAMPLES, **running)
    facts: dict[str, Any] = {
        "source": table.name,
        "layout": table.layout,
        "why": parts.why,
        "rows": {
            "file": len(table),
            "without target": parts.without_target,
            "train": len(parts.train),
            "test": len(parts.test),
        },
        "missing": {name: gone for name, values in table.columns.items() if (gone := sum(map(is_missing, values)))},
        "method": type(chosen).__name__,
        "settings": repr(chosen),
        "prior": repr(model.prior),
        "network": [x.shape[1], *HIDDEN, outputs],
        "length": length,
        "batch_size": even_batch(len(x)),
        "seed": seed,
        "seconds": round(time.perf_counter() - began, 2),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    fitted = FittedTable(posterior, parts.schema, goal, learn_novelty(x, seed), facts, calibration)
    return fitted.with_scores(held_out_scores(fitted, parts.test)) if len(parts.test) else fitted


def even_batch(rows: int) -> int:
    """At most `BATCH_SIZE`, and such that all batches of an epoch are about as large.

    A last batch of a few rows would count as much as the others and drown the noise scale in noise: with 197 rows in
    batches of 64, 64, 64 and 5 the error was a third larger than with four of about 49.
    """
    return math.ceil(rows / math.ceil(rows / BATCH_SIZE))


def _method(method: Method | str) -> Method:
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)} or a method such as pl.MultiSWAG(), got {method!r}"
        )
    return METHODS[method]


def _model(inputs: int, outputs: int, task: Task, seed: int, prior: Any = None) -> BayesianModel:
    with forked(seed, NETWORK):
        network = MLP(inputs, HIDDEN, outputs)
    if task == "classification":
        return BayesianModel(network, likelihoods.Categorical(), CLASS_PRIOR if prior is None else prior)
    return BayesianModel(network, likelihoods.Normal(scale="learn"), NUMBER_PRIOR if prior is None else prior)


def _length(method: Method, rows: int, epochs: int | None) -> dict[str, Any]:
    if epochs is not None:
        return {"epochs": epochs}
    own = method.unfold()[0]
    if own.full_batch:
        return {"steps": SLOPES // own.slopes_per_step}
    return {"steps": min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * math.ceil(rows / BATCH_SIZE)))}
