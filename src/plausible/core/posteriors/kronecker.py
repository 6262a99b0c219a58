"""A Gaussian with one Kronecker-factored block per layer (Ritter, Botev & Barber, 2018)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ...weights.algebra import Weights, from_vector, under_vmap
from ...weights.rng import Keys
from ..target import Target
from .gaussian import LOG_2PI, Gaussian


@dataclass(frozen=True, eq=False)
class Block:
    """One weight and its bias, jointly normal, seen as one matrix per group.

    The weight is reshaped to (g, o, i), where g · o is its first axis; the bias to (g, o, 1), one more column. With c
    columns in all, a draw of W̃ (g, o, c) is

        W̃ = M + left @ (scale ⊙ Z) @ rightᵀ,   Z ~ N(0, I).

    So a group's covariance, its W̃ flattened as torch does (columns vary fastest), is R Rᵀ with
    R = torch.kron(left, right) @ torch.diag(scale.flatten()). Groups are independent.

    Args:
        weight: The weight's name.
        bias: The bias' name, where the layer has one.
        left: (g, o, o), or (g, o) for a diagonal matrix; invertible.
        right: (g, c, c), or (g, c) for a diagonal matrix; invertible.
        scale: (g, o, c), positive.
    """

    weight: str
    bias: str | None
    left: Tensor
    right: Tensor
    scale: Tensor

    def __post_init__(self):
        g, o, c = self.scale.shape if self.scale.dim() == 3 else (0, 0, 0)
        for name, factor, size in (("left", self.left, o), ("right", self.right, c)):
            if factor.shape not in ((g, size), (g, size, size)):
                raise ValueError(
                    f"a block has scale (g, o, c), left (g, o, o) or (g, o) and right (g, c, c) or (g, c); got scale "
                    f"{tuple(self.scale.shape)} and {name} {tuple(factor.shape)} for {self.weight}"
                )

    @property
    def names(self) -> list[str]:
        """The unknowns it covers."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def spread(self, z: Tensor) -> Tensor:
        """left @ (scale ⊙ z) @ rightᵀ; leading axes are kept."""
        return _rows(self.left, _columns(self.right, self.scale * z))

    def unspread(self, matrices: Tensor) -> Tensor:
        """The transpose of `spread`: scale ⊙ (leftᵀ @ matrices @ right)."""
        return self.scale * _rows(_transposed(self.left), _columns(_transposed(self.right), matrices))

    def whiten(self, matrices: Tensor) -> Tensor:
        """The inverse of `spread`."""
        left, right, _ = self._inverted()
        return _rows(left, _columns(right, matrices)) / self.scale

    def log_determinant(self) -> Tensor:
        """log |det| of `spread`, half that of the covariance."""
        return self.scale.log().sum() + self._inverted()[2]

    def _inverted(self) -> tuple[Tensor, Tensor, Tensor]:
        """left⁻¹, right⁻¹ and Σ log |det| of the two, each as often as it acts."""
        known = self.__dict__.get("_known")
        if known is None:
            rows, columns = self.scale.shape[1:]
            log_det = columns * _log_det(self.left) + rows * _log_det(self.right)
            known = (_inverse(self.left), _inverse(self.right), log_det)
            if not under_vmap():  # what is made inside a transform or a trace must not outlive it
                self.__dict__["_known"] = known
        return known


class Kronecker(Gaussian):
    """Independent blocks, one per layer, each with a Kronecker-factored covariance; what has a scale is independent.

    Args:
        model: Whose unknowns they are.
        mean: The mean of all unknowns.
        blocks: The layers' distributions.
        scale: Standard deviations of unknowns that no block covers, such as norm layers and noise scales. What is in
            neither does not vary.
    """

    def __init__(self, model: Target, mean: Weights, blocks: Sequence[Block], scale: Weights | None = None):
        self.blocks = tuple(blocks)
        covered, given = [name for b in self.blocks for name in b.names], scale or {}
        super().__init__(model, mean, [*covered, *given])
        rest = [k for k in self.free if k not in covered]
        if len(set(covered)) < len(covered) or given.keys() != set(rest):
            raise ValueError(
                f"an unknown is in one block or has a scale, got blocks of {covered} and scales of {list(given)}"
            )
        for b in self.blocks:
            _check_sizes(b, self._mean)
        self.scale = {k: given[k] for k in rest}
        sizes = [b.scale.numel() for b in self.blocks]
        self._noise_sizes = [*sizes, sum(self._mean[k].numel() for k in rest)]

    @property
    def tensors(self) -> dict[str, Any]:
        """Mean, scales and the blocks' factors; a block's key says which unknowns it covers."""
        blocks = {
            json.dumps(b.names, ensure_ascii=False): {"left": b.left, "right": b.right, "scale": b.scale}
            for b in self.blocks
        }
        return {"mean": self._mean, "scale": self.scale, "blocks": blocks}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""
        blocks = []
        for key, factors in tensors.get("blocks", {}).items():
            weight, bias = (*json.loads(key), None)[:2]
            blocks.append(Block(weight, bias, factors["left"], factors["right"], factors["scale"]))
        return cls(model, tensors["mean"], blocks, tensors.get("scale"))

    def scatter(self, rng: Keys, dtype: torch.dtype) -> Tensor:
        """Every block's left (scale ⊙ Z) rightᵀ, and σ z for the rest."""
        return self._spread(rng.normal((sum(self._noise_sizes),), dtype, self.device))

    def deviations(self, indices: Sequence[int], seed: int) -> Tensor:
        """Draws number `indices` minus the mean, (n, P)."""
        # Outside of vmap, which would give every draw a copy of the factors.
        return self._spread(self._noise(sum(self._noise_sizes), indices, seed))

    def _spread(self, z: Tensor) -> Tensor:
        *noise, last = z.split(self._noise_sizes, dim=-1)
        parts: Weights = {}
        for b, own in zip(self.blocks, noise, strict=True):
            matrices = b.spread(own.reshape(*z.shape[:-1], *b.scale.shape).to(b.scale.dtype))
            columns = b.scale.shape[-1] - (b.bias is not None)
            parts[b.weight] = matrices[..., :columns].flatten(-3)
            if b.bias is not None:
                parts[b.bias] = matrices[..., columns].flatten(-2)
        parts.update({k: s.flatten() * v.flatten(z.dim() - 1) for (k, s), v in self._rest(last)})
        return torch.cat([parts[k] for k in self.free], dim=-1)

    def _rest(self, vector: Tensor) -> list[tuple[tuple[str, Tensor], Tensor]]:
        """(name, scale) of what is in no block, each with its part of a vector."""
        sizes = [s.numel() for s in self.scale.values()]
        return list(zip(self.scale.items(), vector.split(sizes, dim=-1) if sizes else (), strict=True))

    def _matrices(self, vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """A vector over all unknowns as every block's W̃, and the rest."""
        parts = from_vector(vector, self.free)
        lead = vector.shape[:-1]
        matrices = []
        for b in self.blocks:
            g, o, _ = b.scale.shape
            columns = [parts[k].reshape(*lead, g, o, -1) for k in b.names]
            matrices.append(torch.cat(columns, -1) if len(columns) > 1 else columns[0])
        rest = [parts[k].reshape(*lead, -1) for k in self.scale]
        return matrices, torch.cat(rest, -1) if rest else vector[..., :0]

    def unscatter(self, vector: Tensor) -> Tensor:
        """Lᵀ v, block by block."""
        matrices, rest = self._matrices(vector)
        parts = [b.unspread(m).flatten(-3) for b, m in zip(self.blocks, matrices, strict=True)]
        return torch.cat([*parts, *(s.flatten() * v for (_, s), v in self._rest(rest))], dim=-1)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log N(params; mean, covariance), by every factor's inverse."""
        deviation = self._deviation(params)
        matrices, rest = self._matrices(deviation)
        parts = [b.whiten(m).flatten(-3) for b, m in zip(self.blocks, matrices, strict=True)]
        z = torch.cat([*parts, *(v / s.flatten() for (_, s), v in self._rest(rest))], dim=-1)
        log_det = sum(b.log_determinant() for b in self.blocks) + sum(s.log().sum() for s in self.scale.values())
        return -0.5 * (z * z + LOG_2PI).sum(-1) - log_det


def block_from_factors(
    weight: str, bias: str | None, input_factor: Tensor, output_factor: Tensor, prior_precision: Tensor
) -> tuple[Block, Tensor]:
    """The block whose covariance is (A ⊗ G + D ⊗ I)⁻¹ exactly, and the log determinant of that precision.

    Written for W̃ with its rows varying fastest; flattened as torch does, the precision is
    torch.kron(G, A) + torch.kron(I, D). With A' = D^-½ A D^-½ = U diag(λ) Uᵀ and G = V diag(γ) Vᵀ,

        left = V,   right = D^-½ U,   scale = (γ ⊗ λ + 1)^-½.

    Where D has zeros (a flat prior), A and D are brought to diagonal form together through αA + D instead. All is
    computed in float64: the small eigenvalues of a large A matter beside D.

    Args:
        weight: The weight's name.
        bias: The bias' name, where the layer has one; it is the last column.
        input_factor: A over the columns of W̃, (g, c, c), or (g, c) for a diagonal one.
        output_factor: G over its rows, (g, o, o), or (g, o) for a diagonal one.
        prior_precision: d, the diagonal of D, (g, c).
    """
    a, g, d = input_factor.double(), output_factor.double(), prior_precision.double()
    if not bool(torch.isfinite(d).all() and (d >= 0).all()):
        raise ValueError(f"prior precisions must be finite and not negative, got {d.min().item()} for {weight}")
    if not bool(torch.isfinite(a).all() and torch.isfinite(g).all()):
        raise ValueError(f"the curvature of {weight} is not finite; train with a smaller learning rate")
    gamma, left = _spectrum(g)
    flat = not bool((d > 0).all())
    tolerance = torch.finfo(input_factor.dtype).eps * max(gamma.shape[-1], d.shape[-1])
    right, curvature, prior = _axes_of_a_flat_prior(weight, a, d, tolerance) if flat else _axes(a, d)
    precision = gamma.unsqueeze(-1) * curvature.unsqueeze(-2) + prior.unsqueeze(-2)
    if flat:
        _require_definite(weight, precision.flatten(1), tolerance)
    log_det = precision.log().sum() - 2 * precision.shape[1] * _log_det(right)
    dtype = input_factor.dtype
    left, right = left.to(dtype).contiguous(), right.to(dtype).contiguous()
    return Block(weight, bias, left, right, precision.rsqrt().to(dtype)), log_det


# --- axes in which curvature and prior are diagonal ---


def _spectrum(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (rounding's negative ones are zeros) and eigenvectors; a diagonal matrix is in its axes already."""
    if factor.dim() == 2:
        return factor.clamp(min=0), torch.ones_like(factor)
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp(min=0), vectors


def _axes(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R, Rᵀ A R and Rᵀ D R, the latter two diagonal, for a positive D: R = D^-½ U and Rᵀ D R = I."""
    root = d.sqrt()
    scaled = a / d if a.dim() == 2 else a / (root.unsqueeze(-1) * root.unsqueeze(-2))
    curvature, axes = _spectrum(scaled)
    return axes / (root if a.dim() == 2 else root.unsqueeze(-1)), curvature, torch.ones_like(d)


def _axes_of_a_flat_prior(weight: str, a: Tensor, d: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same where D has zeros, through the square root of B = αA + D; α makes the two alike in size."""
    diagonal = a if a.dim() == 2 else a.diagonal(dim1=-2, dim2=-1)
    sizes = d.sum(-1, keepdim=True), diagonal.sum(-1, keepdim=True)
    alpha = torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1].clamp(min=1e-300), 1.0)
    if a.dim() == 2:
        both = alpha * a.clamp(min=0) + d
        _require_definite(weight, both, tolerance)
        return both.rsqrt(), a.clamp(min=0) / both, d / both
    both, axes = _spectrum(alpha.unsqueeze(-1) * a + torch.diag_embed(d))
    _require_definite(weight, both, tolerance)
    root = axes * both.rsqrt().unsqueeze(-2)
    curvature, turn = _spectrum(root.mT @ a @ root)
    right = root @ turn
    # Not 1 − α · curvature, which would cancel where the curvature is large.
    return right, curvature, (d.unsqueeze(-1) * right * right).sum(-2)


def _require_definite(weight: str, values: Tensor, tolerance: float) -> None:
    smallest, largest = values.amin(-1), values.amax(-1)
    if bool((smallest <= tolerance * largest).any()):
        raise ValueError(
            f"the curvature of {weight} is singular (an eigenvalue of {smallest.min().item():.3g} beside "
            f"{largest.max().item():.3g}) where its prior is flat, so its variance is infinite; give it a prior such as "
            "pl.priors.Normal()"
        )


# --- factors, which are matrices or the diagonals of matrices ---


def _rows(factor: Tensor, matrices: Tensor) -> Tensor:
    """factor @ matrices."""
    if factor.dim() == 2:
        return factor.unsqueeze(-1) * matrices
    return torch.einsum("gab,...gbc->...gac", factor, matrices)


def _columns(factor: Tensor, matrices: Tensor) -> Tensor:
    """matrices @ factorᵀ."""
    if factor.dim() == 2:
        return factor.unsqueeze(-2) * matrices
    return torch.einsum("...gab,gcb->...gac", matrices, factor)


def _transposed(factor: Tensor) -> Tensor:
    return factor if factor.dim() == 2 else factor.mT


def _inverse(factor: Tensor) -> Tensor:
    return factor.reciprocal() if factor.dim() == 2 else torch.linalg.inv(factor)


def _log_det(factor: Tensor) -> Tensor:
    """log |det|, summed over groups."""
    return factor.abs().log().sum() if factor.dim() == 2 else torch.linalg.slogdet(factor).logabsdet.sum()


def _check_sizes(block: Block, mean: Weights) -> None:
    g, o, c = block.scale.shape
    weight = mean[block.weight]
    bias = 0 if block.bias is None else mean[block.bias].numel()
    if weight.dim() == 0 or weight.shape[0] != g * o or weight.numel() + bias != g * o * c or bias not in (0, g * o):
        raise ValueError(
            f"a block of scale {(g, o, c)} does not fit {block.weight} of shape {tuple(weight.shape)}"
            + ("" if block.bias is None else f" and {block.bias} of shape {tuple(mean[block.bias].shape)}")
            + "; its first axis is groups times rows, its other axes and the bias are the columns"
        )
