"""Laplace's approximation of a log density without a network: minus its Hessian at its highest point."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.density import LogDensity
from ...core.diagnostics import Diagnostics
from ...core.errors import NotSupported
from ...core.evidence import Evidence
from ...core.posteriors import Diagonal, Full, Posterior
from ...core.prior_groups import choose
from ...weights.algebra import Weights, from_vector
from .newton import climb
from .places import DensityPlace

if TYPE_CHECKING:
    from .laplace import Laplace


def expand(method: Laplace, target: LogDensity, params: Weights) -> Posterior:
    """The Gaussian around the highest point; its evidence is of the density's integral."""
    refuse_unsuitable(method)
    names = list(params) if method.subset == "all" else choose(list(params), method.subset, "subset")
    top = climb(DensityPlace({k: v.detach() for k, v in params.items()}, names, target))
    values = torch.linalg.eigvalsh(top.precision)
    if not bool(values[0] > torch.finfo(torch.float64).eps * values[-1]):
        raise ValueError(
            f"the log density is not bent downwards everywhere at the highest point that was found (curvatures from "
            f"{values[0]:.3g} to {values[-1]:.3g}), so some variance is infinite; start nearer to a mode with init=, or take HMC"
        )
    own = {k: top.params[k] for k in names}
    answer, log_det = _gaussian(method.structure, target, top, own)
    value = top.value + 0.5 * len(values) * math.log(2 * math.pi) - 0.5 * log_det
    answer._evidence = Evidence(torch.as_tensor(value, dtype=torch.float64), "laplace")
    distance = float(torch.linalg.solve(top.precision, top.whole[1]) @ top.whole[1]) ** 0.5
    answer._diagnostics = Diagnostics(
        messages=(f"expanded {distance:.2g} posterior deviations from the highest point",),
        table={"expansion": {"distance": distance}},
        ok=distance <= len(values) ** 0.5,
    )
    return answer


def _gaussian(structure: str, target: LogDensity, top: Any, own: Weights) -> tuple[Posterior, float]:
    if structure == "full":
        covariance = torch.linalg.inv(top.precision)
        return Full(target, top.params, (covariance + covariance.mT) / 2, list(own)), float(top.precision.logdet())
    diagonal: Tensor = top.precision.diagonal()
    scale = from_vector(diagonal.rsqrt().to(next(iter(own.values())).dtype), own)
    return Diagonal(target, top.params, scale), float(diagonal.log().sum())


def refuse_unsuitable(method: Laplace) -> None:
    """What only a network has."""
    if method.structure not in ("full", "diagonal") or method.prior_precision is not None:
        raise NotSupported(
            f'a LogDensity has no layers and no prior of its own; structure="full" and "diagonal" work, with '
            f"prior_precision=None, got {method.structure!r} and {method.prior_precision!r}"
        )
    if method.subset == "last-layer":
        raise NotSupported('a LogDensity has no last layer; give subset= name pattern(s), or "all"')
