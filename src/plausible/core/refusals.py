"""What `fit` refuses before anything runs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from .errors import NotSupported
from .likelihoods import Bernoulli, Categorical
from .method import Method
from .model import BayesianModel
from .priors import Flat
from .target import Target

log = logging.getLogger("plausible")


def refuse_different_courses(given: Sequence[Method], methods: Sequence[Method], steps: int) -> None:
    """All runs of a `fit_many` keep and adapt at the same steps, and share all but the numbers of their own method."""

    def course(m: Method) -> tuple[Any, ...]:
        rest = {f.name: getattr(m, f.name) for f in dataclasses.fields(m) if f.name not in m.numbers()}
        return list(m.kept_steps(steps)), list(m.adapted_steps(steps)), m.capacity(steps), rest

    for told, m in zip(given[1:], methods[1:], strict=True):
        if course(m) != course(methods[0]):
            mine, first = told.numbers(), given[0].numbers()
            names = [k for k in {**mine, **first} if mine.get(k) != first.get(k)]
            raise ValueError(
                f"the methods of one fit_many must go one course, and {' and '.join(names)} of {type(told).__name__} changes "
                "its schedule or when it keeps draws; call fit for each"
            )


def warn_if_improper(model: Target) -> None:
    """A flat prior leaves it to the data to make the posterior a distribution."""
    if not isinstance(model, BayesianModel) or model.num_data is None:
        return
    flat = [n for g in model.groups if isinstance(getattr(g.prior, "prior", g.prior), Flat) for n in g.names]
    size = sum(model.start[n].numel() for n in flat)
    way_out = "give these weights a prior such as pl.priors.Normal(scale=1.0)"
    if size > model.num_data:
        log.warning(
            "%s have a flat prior: with %d weights and %g examples the posterior may be improper, some directions being not "
            "determined by anything; %s", _few(flat), size, model.num_data, way_out,
        )  # fmt: skip
    elif flat and isinstance(model.likelihood, Bernoulli | Categorical):
        log.warning(
            "%s have a flat prior: if the classes can be separated the posterior is improper and weights grow without end; %s",
            _few(flat), way_out,
        )  # fmt: skip


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def refuse_unsuitable(model: Target, method: Method, augment: Any) -> None:
    """What a method cannot do with a model, said before anything runs."""
    if augment is not None and method.swept_steps(1):
        raise NotSupported(
            "variance reduction compares batches with sweeps over the data as they are, which augment= changes; leave one out"
        )
    if augment is not None and method.full_batch:
        raise NotSupported(
            f"{type(method).__name__} sees all data as they are at every step, and would never call augment=; leave it out, or "
            "take a method of batches such as pl.SGHMC()"
        )
    if not isinstance(model, BayesianModel):
        return
    if method.is_point:
        for k, h in model.hyperpriors.items():
            if k.startswith("prior.") and not h.vanishes_at_zero:
                raise NotSupported(
                    f"{k} has the hyperprior {h}, whose density does not vanish at zero, so the log joint has no highest point; "
                    "use HMC or ADVI, or LogNormal or InverseGamma as hyperprior"
                )
    if method.full_batch and model.network.statistics and method.trains:
        raise NotSupported(
            "batch norm in train mode makes the posterior depend on the batch; use group norm with this sampler"
        )
