"""From sums of curvature and a prior's precisions to a Gaussian and the log determinant of its precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...core.free_memory import free_bytes
from ...core.model import BayesianModel
from ...core.posteriors import Diagonal, Full, Kronecker
from ...core.posteriors.kronecker import block_from_factors
from ...curvature.kronecker import Block, blocks
from ...curvature.tracing import Plan
from ...weights.algebra import Weights


def gaussian(
    structure: str, model: BayesianModel, mean: Weights, curvature: Any, prior: Weights, layout: Sequence[Block]
) -> tuple[Any, Tensor]:
    """The Gaussian around `mean` with precision curvature + prior over the unknowns in `prior`, and its log determinant.

    Args:
        structure: "diagonal", "kronecker" or "full".
        model: Whose unknowns they are.
        mean: Of all unknowns.
        curvature: {"weights": what the structure gathers, "unknowns": {name: ...}}, tempered.
        prior: Precisions of the unknowns that vary, in their shapes.
        layout: Which weights have Kronecker factors, for that structure.
    """
    if structure == "diagonal":
        return _diagonal(model, mean, curvature, prior)
    if structure == "kronecker":
        return _kronecker(model, mean, curvature, prior, layout)
    return _full(model, mean, curvature, prior)


def _diagonal(model: BayesianModel, mean: Weights, curvature: Any, prior: Weights) -> tuple[Diagonal, Tensor]:
    precision = {k: d + _own(curvature, "weights", k, d) for k, d in prior.items()}
    for k, p in precision.items():
        require_positive(k, p)
    log_det = sum(p.double().log().sum() for p in precision.values())
    return Diagonal(model, mean, {k: p.rsqrt() for k, p in precision.items()}), torch.as_tensor(log_det)


def _kronecker(
    model: BayesianModel, mean: Weights, curvature: Any, prior: Weights, layout: Sequence[Block]
) -> tuple[Kronecker, Tensor]:
    made, log_det = [], torch.zeros((), dtype=torch.float64)
    for b in layout:
        factors = curvature["weights"]["blocks"][b.weight]
        for k in (k for k in (b.weight, b.bias) if k is not None):
            _require_log_concave(k, prior[k])
        block, own = block_from_factors(
            b.weight, b.bias, factors["columns"] / factors["count"], factors["rows"],
            prior_columns(b, factors, mean, prior),
        )  # fmt: skip
        made.append(_in_precision(block, mean[b.weight].dtype))
        log_det = log_det + own.cpu()
    covered = {n for b in layout for n in (b.weight, b.bias)}
    scale = {}
    for k, d in prior.items():
        if k in covered:
            continue
        precision = d + _own({**curvature, "weights": curvature["weights"]["diagonal"]}, "weights", k, d)
        require_positive(k, precision)
        scale[k] = precision.rsqrt()
        log_det = log_det + precision.double().log().sum().cpu()
    return Kronecker(model, mean, made, scale), log_det


def _in_precision(block: Any, dtype: torch.dtype) -> Any:
    """Factors of a half-precision network are sums in float32, and its draws are halves again."""
    if block.scale.dtype == dtype:
        return block
    return replace(block, left=block.left.to(dtype), right=block.right.to(dtype), scale=block.scale.to(dtype))


def prior_columns(block: Block, factors: Mapping[str, Tensor], mean: Weights, prior: Weights) -> Tensor:
    """Precisions (groups, columns): where they differ between rows, which the factors cannot say, their mean."""
    groups, rows = factors["rows"].shape[:2]
    d = prior[block.weight].reshape(groups, rows, -1).mean(1)
    if block.bias is None:
        return d
    return torch.cat([d, prior[block.bias].reshape(groups, rows).mean(1, keepdim=True)], -1)


def _full(model: BayesianModel, mean: Weights, curvature: Any, prior: Weights) -> tuple[Full, Tensor]:
    precision = dense_precision(curvature, prior)
    apart = _apart(curvature, prior)
    # Sums of squares in single precision have eigenvalues of this size, also below zero, where there are none.
    rounding = torch.finfo(curvature["weights"]["dense"].dtype).eps
    root = precision.diagonal().clamp(min=torch.finfo(torch.float64).tiny).sqrt()
    factor, failed = torch.linalg.cholesky_ex(precision / (root.unsqueeze(0) * root.unsqueeze(1)))
    inverse = None if bool(failed) else torch.cholesky_inverse(factor)
    if inverse is not None and bool(inverse.trace() < 0.1 / rounding):  # no eigenvalue is below one over the trace
        covariance = inverse / (root.unsqueeze(0) * root.unsqueeze(1))
        log_det = 2 * (factor.diagonal().log() + root.log()).sum()
    elif bool((apart > 0).all()):
        covariance, log_det = _beside_the_prior(precision - torch.diag(apart), apart, rounding)
    else:
        for k, d in prior.items():
            _require_log_concave(k, d)
        values = torch.linalg.eigvalsh(precision)
        raise ValueError(
            f"the curvature is singular where the prior is flat (eigenvalues from {values[0]:.3g} to {values[-1]:.3g}), so "
            "some variance is infinite: fewer data than weights, duplicated inputs, dead units or a softmax with a logit "
            'too many do that; give the weights a prior such as pl.priors.Normal(), or take structure="diagonal"'
        )
    return Full(model, mean, covariance, names=list(prior)), log_det.cpu()


def _beside_the_prior(curvature: Tensor, prior: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """(H + D)⁻¹ and log |H + D| by the eigenvalues of D^-½ H D^-½, those that are rounding's taken as zero."""
    root = prior.sqrt()
    values, vectors = torch.linalg.eigh(curvature / (root.unsqueeze(0) * root.unsqueeze(1)))
    values = torch.where(values > rounding * values[-1], values, 0.0)
    half = vectors * (1 + values).rsqrt() / root.unsqueeze(1)
    return half @ half.mT, values.log1p().sum() + prior.log().sum()


def dense_precision(curvature: Any, prior: Weights) -> Tensor:
    """(P, P) in float64, over the unknowns of `prior` in order: weights first, then the rest."""
    dense = curvature["weights"]["dense"].double()
    precision = torch.diag(_apart(curvature, prior))
    precision[: len(dense), : len(dense)] += dense
    return precision


def _apart(curvature: Any, prior: Weights) -> Tensor:
    """The diagonal that stands beside the weights' curvature: the prior's, and what the data say of a noise scale."""
    parts = [d + _own(curvature, "none", k, d) if _is_hyper(k) else d for k, d in prior.items()]
    return torch.cat([d.flatten() for d in parts]).double()


def _is_hyper(name: str) -> bool:
    return name.startswith(("likelihood.", "prior."))


def _own(curvature: Any, part: str, name: str, like: Tensor) -> Tensor:
    for found in (curvature["unknowns"], curvature.get(part, {})):
        if name in found:
            return found[name]
    return torch.zeros_like(like)  # a prior's own unknown: the likelihood says nothing about it


def require_positive(name: str, precision: Tensor) -> None:
    """A variance must be a positive number."""
    smallest = float(precision.min())
    if not smallest > 0:
        raise ValueError(
            f"the precision of {name} is {smallest + 0.0:.3g} somewhere, so its variance is infinite or negative: no data speak "
            "of it (dead units, unused inputs) and its prior is flat or not log-concave there; use pl.priors.Normal()"
        )


def _require_log_concave(name: str, prior: Tensor) -> None:
    smallest = float(prior.min())
    if smallest < 0:
        raise ValueError(
            f"the log prior of {name} is bent upwards (curvature {-smallest:.3g}) where the data do not outweigh it, so there "
            "is no highest point to expand around; heavy tails such as a Cauchy's do that: use pl.priors.Normal(), or HMC"
        )


# --- memory ---


def bytes_needed(
    structure: str, plan: Plan | None, names: Sequence[str], params: Mapping[str, Tensor], rank: int
) -> int:
    """Of the largest arrays that a structure keeps at a time; only Kronecker factors need a plan to know."""
    element = next(iter(params.values())).element_size()
    size = sum(params[n].numel() for n in names)
    if structure == "full":
        return size * size * (element + 3 * 8)  # the sum, and the precision, its factor and its inverse in float64
    if structure == "low-rank":
        return 3 * (rank + 10) * size * element
    if structure == "diagonal":
        return 3 * size * element
    assert plan is not None
    total = 3 * size * element
    for b in blocks(plan, names):
        w = params[b.weight]
        rows, columns = w.shape[0], w.numel() // w.shape[0] + (b.bias is not None)
        total += 4 * (rows * rows + columns * columns) * max(element, 8)
    return total


def require_memory(needed: int, structure: str, device: torch.device | None) -> None:
    """Say how much memory a structure needs before it is asked for; without a device, whichever has most must have it."""
    places = [torch.device("cpu"), *[torch.device("cuda")] * torch.cuda.is_available()] if device is None else [device]
    free = max(free_bytes(d) for d in places)
    if needed > free:
        raise ValueError(
            f'structure="{structure}" needs {needed:,} bytes here, and {free:,} are free; take "kronecker" or "diagonal", or '
            'fewer weights: subset="last-layer" or a name pattern'
        )
