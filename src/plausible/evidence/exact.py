"""The exact evidence, where the network is linear in its unknown weights and noise and prior are normal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.evidence import Evidence
from ..core.method import Sweep
from ..core.model import BayesianModel
from ..curvature.outputs import bound_likelihood
from ..inference.laplace.survey import survey, whole_slope
from ..weights.algebra import Weights, from_vector, to_vector
from .gathering import NOISE, at_noise, noise_of, positive, precisions_of, sweep_of

LINEAR = 1e-4  # relative departure from a straight line that rounding may cause, in float32


def exact(
    model: BayesianModel,
    data: Any,
    *,
    prior_precision: float | Tensor | Mapping[str, Any] | None = None,
    noise_scale: float | Tensor | None = None,
) -> Evidence:
    """log p(D) of a linear model: all its weights, or the last layer of a network whose other weights are fixed.

    Differentiable in `prior_precision` and `noise_scale` where these are tensors.

    Args:
        model: With `pl.likelihoods.Normal` and `pl.priors.Normal`; for a last layer `parameters=` its name pattern.
        data: As for `fit`.
        prior_precision: Instead of the model's: one number, or numbers by name patterns.
        noise_scale: Instead of the likelihood's; needed where that is unknown.
    """
    start = {k: v.detach() for k, v in model.start.items()}
    device = next(iter(start.values())).device
    if NOISE in model.hyperpriors and noise_scale is None:
        raise NotSupported("the noise scale is unknown, so the evidence has no closed form; give noise_scale")
    names = list(model.weight_names)
    given = precisions_of(model, start, names, prior_precision, settled=True)
    prior = torch.cat([given[n].double().cpu().expand(start[n].shape).flatten() for n in names])
    origin = {k: torch.zeros_like(v) if k in names else v for k, v in start.items()}
    model, sweep = sweep_of(model, data, device)
    _require_linear(model, origin, next(iter(sweep()))[0])
    before = noise_of(model, origin)
    noise = before if noise_scale is None else positive("noise_scale", noise_scale).double().cpu()
    louder = before**2 / noise**2  # curvature and slope of the likelihood go with the inverse square of the noise
    dense = survey(model, origin, sweep, "full", "ggn", names).curvature["dense"].double().cpu()
    factor = torch.linalg.cholesky(louder * dense + torch.diag(prior))
    # A quadratic may be expanded anywhere; at its top no large numbers cancel, which single precision would feel.
    with torch.no_grad():
        top = louder * torch.cholesky_solve(_likelihood_slope(model, origin, sweep, names).unsqueeze(1), factor)
        here = {**origin, **from_vector(top.squeeze(1).to(origin[names[0]]), {n: origin[n] for n in names})}
    point = to_vector({n: here[n] for n in names}).double().cpu()
    value = _log_likelihood(model, here, sweep, before, noise)
    slope = louder * _likelihood_slope(model, here, sweep, names) - prior * point
    rise = 0.5 * slope @ torch.cholesky_solve(slope.unsqueeze(1), factor).squeeze(1)
    log_prior = 0.5 * (prior.log() - prior * point**2).sum()  # its 2π cancel those of the determinant
    return Evidence(value + log_prior + rise - factor.diagonal().log().sum(), "exact")


def _likelihood_slope(model: BayesianModel, params: Weights, sweep: Sweep, names: list[str]) -> Tensor:
    _, slope = whole_slope(model, params, sweep)
    prior = model.prior_slope(params)
    return to_vector({k: slope[k].double() - prior[k].double() for k in names}).cpu()


def _log_likelihood(model: BayesianModel, params: Weights, sweep: Sweep, before: Tensor, noise: Tensor) -> Tensor:
    """Of residuals at `params`, at another noise than the model's."""
    likelihood, value, count = bound_likelihood(model, params), torch.zeros((), dtype=torch.float64), 0.0
    with torch.no_grad():
        for inputs, targets, weights in sweep():
            found = likelihood.log_prob(model.outputs(params, inputs), targets)
            value = value + (found * weights).sum().double().cpu()
            count += float(weights.sum()) * (targets.numel() // len(targets))
    return at_noise(value, count, before, noise)


def _require_linear(model: BayesianModel, origin: Weights, inputs: Any) -> None:
    """f(a + b) + f(0) = f(a) + f(b) for some a and b that nobody has chosen."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        {k: torch.randn(origin[k].shape, generator=generator).to(origin[k]) for k in model.weight_names} for _ in "ab"
    )

    def run(weights: Weights) -> Tensor:
        with torch.no_grad():
            return model.outputs({**origin, **weights}, inputs)

    both = run({k: a[k] + b[k] for k in a})
    gap = (both + run({}) - run(a) - run(b)).abs().max()
    if not bool(gap <= LINEAR * both.abs().max()):
        raise NotSupported(
            "the network is not linear in its unknown weights, so its evidence has no closed form; take "
            'pl.evidence.laplace, or make only the last layer unknown: parameters="<its name>.*"'
        )
