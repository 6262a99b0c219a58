"""Laplace's approximation of the evidence, differentiable in prior precisions and noise (MacKay, 1992; Immer et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.evidence import Evidence
from ..core.model import BayesianModel
from ..curvature.kronecker import blocks
from ..curvature.tracing import plan_for
from ..inference.laplace.laplace import chosen_names
from ..inference.laplace.prior_curvature import refuse_products
from ..inference.laplace.spectrum import Spectrum
from ..inference.laplace.survey import survey
from .gathering import at_noise, noise_of, positive, precisions_of, sweep_of


def laplace(
    model: BayesianModel,
    params: Mapping[str, Tensor],
    data: Any,
    *,
    structure: str = "kronecker",
    subset: Any = "all",
    curvature: str = "ggn",
    prior_precision: float | Tensor | Mapping[str, Any] | None = None,
    noise_scale: float | Tensor | None = None,
) -> Evidence:
    """log p(D | w*) + log p(w*) + P/2 log 2π − ½ log |Λ| at weights w* = `params`; noise scales are held at their values.

    Differentiable in `prior_precision` and `noise_scale` where these are tensors.

    Args:
        model: With normal priors, unless `prior_precision` covers all weights.
        params: A posterior's `.mean`, say; the approximation is of the evidence only at the highest point. Norm layers have
            the network's own statistics where these are its own weights, else those of these weights on these data.
        data: As for `fit`.
        structure: "diagonal", "kronecker" or "full".
        subset: "all", "last-layer" or name pattern(s) of weights.
        curvature: "ggn", "mc-fisher" or "empirical-fisher".
        prior_precision: Instead of the model's: one number, or numbers by name patterns, each for whole weights.
        noise_scale: Instead of the likelihood's, for normal noise.
    """
    if structure not in ("diagonal", "kronecker", "full"):
        raise ValueError(f'structure must be "diagonal", "kronecker" or "full", got {structure!r}')
    model._check_names(params)
    refuse_products(model, structure)
    params = {k: v.detach() for k, v in params.items()}
    model, sweep = sweep_of(model, data, next(iter(params.values())).device, params)
    first = next(iter(sweep()))[0]
    names = [n for n in chosen_names(model, params, first, subset) if n in model.weight_names]
    found = survey(model, params, sweep, structure, curvature, names)
    value, louder = found.log_likelihood.double().cpu(), torch.ones((), dtype=torch.float64)
    if noise_scale is not None:
        noise, before = positive("noise_scale", noise_scale).double().cpu(), noise_of(model, params)
        count = sum(float(w.sum()) * (y.numel() // len(y)) for _, y, w in sweep())
        value = at_noise(value, count, before, noise)
        # An empirical Fisher has squares of slopes, each of which goes with the inverse variance.
        louder = (before**2 / noise**2) ** (2 if curvature == "empirical-fisher" else 1)
    groups = [[n] for n in names]
    given = precisions_of(model, params, names, prior_precision)
    each = torch.stack([_one_number(n, given[n]) for n in names])
    layout = blocks(plan_for(model, params, first, tuple(names)), names)
    spectrum = Spectrum.of(structure, found.curvature, groups, layout, params)
    norms = torch.stack([(params[n].double() ** 2).sum().cpu() for n in names])
    sizes = torch.tensor([float(params[n].numel()) for n in names], dtype=torch.float64)
    log_prior = 0.5 * (sizes * each.log() - each * norms).sum()  # its 2π cancel those of the determinant
    return Evidence(value + log_prior - 0.5 * spectrum(each, louder), "laplace")


def _one_number(name: str, precision: Tensor) -> Tensor:
    flat = precision.double().cpu().flatten()
    if bool((flat != flat[0]).any()):
        raise ValueError(
            f"{name} must have one prior precision here, got between {flat.min():.3g} and {flat.max():.3g}"
        )
    return flat[0]
