"""What the estimators of the evidence share: data in sweeps, and hyperparameters that may be given as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import likelihoods
from ..core.data import make_source
from ..core.errors import NotSupported
from ..core.method import Sweep
from ..core.model import BayesianModel
from ..core.prior_groups import choose
from ..core.refresh import EXAMPLES, statistics_of
from ..inference.laplace.density import is_flat

BATCH = 512
NOISE = "likelihood.scale"
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def sweep_of(
    model: BayesianModel, data: Any, device: torch.device, params: Mapping[str, Tensor] | None = None
) -> tuple[BayesianModel, Sweep]:
    """The model bound to N and to eval mode, with the norm statistics that belong to `params`, and the data in batches."""
    if model.temperature != 1.0:
        raise NotSupported(f"a tempered model (T = {model.temperature}) has no evidence; take temperature=1.0")
    source = make_source(model, data, batch_size=BATCH, seed=0, device=device, num_data=model.num_data)
    bound = model.bound(num_data=source.num_data, training=False, precision=None)
    if params is not None and model.network.statistics and model.buffers is None and not _are_its_own(model, params):
        bound = bound.bound(buffers=statistics_of(model, dict(params), list(source.some_inputs(EXAMPLES))))
    return bound, source.sweep


def _are_its_own(model: BayesianModel, params: Mapping[str, Tensor]) -> bool:
    """Whether these are the weights that the network came with, to which its own norm statistics belong."""
    return all(torch.equal(params[n], model.start[n].to(params[n].device)) for n in model.output_names)


def precisions_of(
    model: BayesianModel, params: Mapping[str, Tensor], names: Sequence[str],
    given: float | Tensor | Mapping[str, Any] | None, settled: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The prior precision of every weight in `names`, 0-d or in its shape.

    Args:
        model: Whose normal priors count where nothing is given.
        params: The weights.
        names: Of the weights.
        given: One number for all, or numbers by name patterns.
        settled: Whether an unknown scale of a prior is refused, instead of taken from `params`.
    """
    found: dict[str, Tensor] = {}
    if isinstance(given, Mapping):
        for pattern, value in given.items():
            for n in choose(names, pattern, "prior_precision"):
                found.setdefault(n, positive("prior_precision", value))
    elif given is not None:
        found = {n: positive("prior_precision", given) for n in names}
    natural = model.constrain({k: params[k] for k in model.hyperpriors})
    for g in model.groups:
        for n in (n for n in g.names if n in names and n not in found):
            if is_flat(g.prior):
                raise NotSupported(
                    f"the prior of {n} is flat, which is no density, so there is no evidence; give prior_precision"
                )
            own = None if g.joint else g.density(n, natural)
            if getattr(own, "precision", None) is None or settled and g.unknowns():
                raise NotSupported(f"{n} has the prior {g.prior!r}; give prior_precision, or a pl.priors.Normal")
            found[n] = own.precision(params[n])  # type: ignore[union-attr]
    return {n: found[n] for n in names}


def noise_of(model: BayesianModel, params: Mapping[str, Tensor]) -> Tensor:
    """The noise scale of a model with normal noise."""
    if not isinstance(model.likelihood, likelihoods.Normal):
        raise NotSupported(f"noise_scale is a property of pl.likelihoods.Normal, got {type(model.likelihood).__name__}")
    if NOISE in model.hyperpriors:
        return model.constrain({NOISE: params[NOISE]})[NOISE].detach().double().cpu()
    found = torch.as_tensor(model.likelihood.scale, dtype=torch.float64).cpu()
    if found.numel() > 1:
        raise NotSupported(
            f"the noise must have one scale here, got {found.numel()}; pl.evidence.laplace takes several"
        )
    return found.reshape(())


def at_noise(log_likelihood: Tensor, count: float, before: Tensor, noise: Tensor) -> Tensor:
    """A normal log likelihood of `count` numbers, found at one noise scale, at another."""
    squares = -2 * before**2 * (log_likelihood + count * (before.log() + HALF_LOG_2PI))
    return -count * (noise.log() + HALF_LOG_2PI) - 0.5 * squares / noise**2


def positive(name: str, value: Any) -> Tensor:
    """A hyperparameter as a tensor, which may carry a gradient."""
    found = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    if not bool((found > 0).all() and found.isfinite().all()):
        raise ValueError(f"{name} must be positive and finite, got {found.min().item():.6g}")
    return found
