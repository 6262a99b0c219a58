"""The log determinant of curvature + precision, as a differentiable function of the precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ...curvature.kronecker import Block

Term = Callable[[Tensor, Tensor], Tensor]


class Spectrum:
    """log |c H + diag(δ)| for precisions δ of groups of weights and a factor c of the curvature; the unknowns' own not."""

    def __init__(self, terms: Sequence[Term]):
        self.terms = list(terms)

    def __call__(self, precisions: Tensor, factor: Tensor) -> Tensor:
        """The sum of its terms."""
        return torch.stack([term(precisions, factor) for term in self.terms]).sum()

    @classmethod
    def of(
        cls, structure: str, curvature: Any, groups: list[list[str]], blocks: Sequence[Block], params: Mapping[str, Tensor]
    ) -> Self:  # fmt: skip
        """Of what a sweep has gathered."""
        where = {n: i for i, names in enumerate(groups) for n in names}
        if structure == "diagonal":
            return cls([_diagonal(curvature[n], i) for n, i in where.items()])
        if structure == "kronecker":
            terms = [_block(curvature["blocks"][b.weight], where[b.weight], where[b.bias or b.weight]) for b in blocks]
            return cls([*terms, *(_diagonal(v, where[n]) for n, v in curvature["diagonal"].items())])
        values, vectors = torch.linalg.eigh(curvature["dense"].double().cpu())
        # Sums in single precision have eigenvalues of this size, also below zero, where there are none.
        values = torch.where(values > torch.finfo(curvature["dense"].dtype).eps * values[-1], values, 0.0)
        if len(groups) == 1:
            return cls.of_eigenvalues(values, len(values))
        dense = (vectors * values) @ vectors.mT
        sizes = torch.tensor([params[n].numel() for n in where])
        each = torch.tensor(list(where.values())).repeat_interleave(sizes)
        return cls([lambda p, c: torch.logdet(c * dense + torch.diag(p[each]))])

    @classmethod
    def of_eigenvalues(cls, values: Tensor, size: int) -> Self:
        """One precision for all `size` weights; eigenvalues that are not given are zero."""
        known = values.double().clamp(min=0).cpu()
        return cls([lambda p, c: (c * known + p[0]).log().sum() + (size - len(known)) * p[0].log()])


def _diagonal(curvature: Tensor, group: int) -> Term:
    values = curvature.double().cpu().flatten()
    return lambda p, c: (c * values + p[group]).log().sum()


def _block(factors: Mapping[str, Tensor], weight: int, bias: int) -> Term:
    """log |G ⊗ A / n + I ⊗ D|: D is the weight's precision but in the last column, which is the bias'."""
    rows, count = _eigenvalues(factors["rows"]), factors["count"].double().cpu()
    inputs = factors["columns"].double().cpu()
    if weight == bias:
        values = (rows.unsqueeze(-1) * _eigenvalues(inputs).unsqueeze(-2)).flatten() / count
        return lambda p, c: (c * values + p[weight]).log().sum()

    def term(p: Tensor, c: Tensor) -> Tensor:
        precision = torch.cat([p[weight].expand(inputs.shape[-1] - 1), p[bias].reshape(1)])
        root = precision.sqrt()
        columns = torch.linalg.eigvalsh(inputs / (root.unsqueeze(0) * root.unsqueeze(1))).clamp(min=0)
        beside = (rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten() * (c / count)
        return beside.log1p().sum() + rows.numel() * precision.log().sum()

    return term


def _eigenvalues(factor: Tensor) -> Tensor:
    factor = factor.double().cpu()
    return (factor if factor.dim() == 2 else torch.linalg.eigvalsh(factor)).clamp(min=0)
