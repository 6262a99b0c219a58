"""The largest eigenvalues of a curvature that is too large to hold, by subspace iteration on its products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.method import Sweep
from ...core.model import BayesianModel
from ...curvature import gauss_newton_product
from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import generator

SPARE = 8  # directions beyond those asked for: the last of them converge last
MOST_SWEEPS = 30
SETTLED = 1e-4  # relative change of the eigenvalues at which they are called found
START = 0x6C616E


def leading_directions(
    model: BayesianModel, params: Mapping[str, Tensor], sweep: Sweep, kind: str, names: Sequence[str], root: Tensor, rank: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Eigenvalues (K,) and orthonormal eigenvectors (K, P) of D^-½ H D^-½, with H the curvature and D^-½ = diag(root)."""
    if kind != "ggn":
        raise NotSupported(f'structure="low-rank" takes products with curvature="ggn" only, got {kind!r}')
    own = {n: params[n] for n in names}
    size, dtype = root.numel(), root.dtype
    root = root.to(torch.promote_types(dtype, torch.float32))  # no decomposition is made for halves
    rank = min(rank, size)
    some = min(size, rank + SPARE)
    start = torch.randn(size, some, generator=generator(START), dtype=torch.float64).to(root)
    basis = torch.linalg.qr(start).Q
    before = torch.zeros(rank, dtype=root.dtype, device=root.device)
    for _ in range(MOST_SWEEPS):
        image = _products(model, params, sweep, own, basis, root)
        inner = basis.T @ image
        values, turn = torch.linalg.eigh((inner + inner.T) / 2)
        leading = values.flip(0)[:rank].clamp(min=0)
        if size == some or bool(((leading - before).abs() <= SETTLED * leading[0]).all()):
            break
        before = leading
        basis = torch.linalg.qr(image).Q
    return leading.to(dtype), (basis @ turn).T.flip(0)[:rank].contiguous().to(dtype)


def _products(
    model: BayesianModel, params: Mapping[str, Tensor], sweep: Sweep, own: Weights, basis: Tensor, root: Tensor
) -> Tensor:
    vectors = {k: v.to(own[k].dtype) for k, v in from_vector((root.unsqueeze(1) * basis).T.contiguous(), own).items()}
    total = torch.zeros_like(basis)
    for batch in sweep():
        found = torch.vmap(lambda v, batch=batch: gauss_newton_product(model, params, batch, v))(vectors)
        total = total + to_vector(found, 1).T.to(total.dtype)
    return root.unsqueeze(1) * total
