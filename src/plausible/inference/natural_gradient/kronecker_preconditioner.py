"""Kronecker factors as a metric: running averages, roots of their inverse, steps and draws by these.

Everything here is a function of dictionaries of tensors.

    factors     {"blocks": {key: {"rows": G, "columns": A}}, "diagonal": {name: curvature in its shape}}
    roots       {"blocks": {key: {"left", "right", "scale", "stretch"}}, "diagonal": {name: standard deviation in its shape}}

A block is a weight, seen as matrices (groups, rows, columns) as in `curvature.kronecker`; where its bias is one more
column, the key is "weight + bias". G (g, o, o) is of the output gradients, summed over all N examples; A (g, c, c) is the
mean of the inputs' products; an embedding has the diagonal of one of them, (g, c) or (g, o). The precision of a block,
flattened as torch does, is

    Λ = torch.kron(G, A) + torch.kron(I, D),

with D the prior's precisions of its columns and whatever is added to damp a step; that of the rest is diagonal + D. Roots
are those of Λ⁻¹. With "scale" in the basis of eigenvectors left and right, and the columns divided by √D, the root is the
symmetric one,

    left (scale ⊙ (leftᵀ Z right)) rightᵀ stretch,

which does not depend on the signs of eigenvectors: draws of two runs that differ by rounding differ by as little. Without
"scale" it is left Z rightᵀ stretch. Steps multiply by Λ⁻¹ itself, for which `squared` makes roots into

    inverse     {"blocks": {key: {"left", "right", "scale", "stretch"}}, "diagonal": {name: variance in its shape}}

with left (scale ⊙ (leftᵀ M right)) rightᵀ as Λ⁻¹ M, or without "scale" left M right, each between two stretches: half of the
products that two roots would take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.posteriors.kronecker import Block, Kronecker, block_from_factors
from ...weights import tree
from ...weights.algebra import Number, Weights

Factors = dict[str, Any]
Roots = dict[str, Any]
Inverse = dict[str, Any]

JOINED = " + "
EXACT_WIDTH = 512  # of a factor: up to here Λ⁻¹ is exact; eigenvalues of wider ones cost more than they are worth
NOTHING = 1e-6  # the root of a curvature that is nothing beside the prior's precision
UNLIKE = 1e-4  # share by which the prior's precisions of a layer's outputs may differ
LOOSEST = 1.0  # the precision with which a weight without a prior is held while it is trained


def block_key(weight: str, bias: str | None) -> str:
    """How a block is called in factors and roots."""
    return weight if bias is None else f"{weight}{JOINED}{bias}"


# --- running averages ---


def averaged(factors: Factors, found: Factors, share: Number) -> Factors:
    """factors ← factors + share · (found − factors)."""
    return tree.tree_map(lambda old, new: old + share * (new - old), factors, found)


def all_finite(factors: Factors) -> Tensor:
    """Whether every number is one: a 0-d tensor."""
    parts = [t.isfinite().all() for _, t in tree.leaves(factors)]
    return torch.stack(parts).all()


def along(factors: Factors, vector: Weights) -> Tensor:
    """vᵀ Λ v without the prior's part, in float64."""
    found: Any = 0.0
    for key, own in factors["blocks"].items():
        g, o = own["rows"].shape[:2]
        m = torch.cat([vector[k].reshape(g, o, -1).to(own["rows"].dtype) for k in key.split(JOINED)], -1)
        found = found + (m * _between(own["rows"], m, own["columns"])).sum().double()
    return found + sum((c * vector[k].square()).sum().double() for k, c in factors["diagonal"].items())


# --- roots of the inverse ---


def roots(factors: Factors, prior: Mapping[str, float | Tensor], like: Weights, damping: Number = 0.0) -> Roots:
    """Roots of Λ⁻¹.

    A block none of whose factors is wider than `EXACT_WIDTH` is inverted exactly. Of a wider one Λ is first replaced by
    (G + I/π) ⊗ (A' + πI) with A' = D^-½ A D^-½ and π² the ratio of their mean eigenvalues (Martens & Grosse, 2015, section
    6.3), which is somewhat larger.

    Args:
        factors: Of all unknowns in `like`.
        prior: Precisions, numbers or tensors in the weights' shapes. In a block those that differ between rows count by
            their mean. Zero stands for no prior, and such weights are held as by a precision of 1.
        like: Tensors in the shapes and dtypes of the unknowns.
        damping: Added to every precision, on the scale of all N examples.
    """
    blocks = {}
    for key, own in factors["blocks"].items():
        d = _believed(_columns_of_prior(key, own, prior, like)) + damping
        a, g = own["columns"].double(), own["rows"].double()
        widest = max([t.shape[-1] for t in (a, g) if t.dim() == 3], default=1)
        # Sums of squares have no eigenvalue below zero, but their rounding has.
        rounding = torch.finfo(own["rows"].dtype).eps
        made = _exact_root(a, g, d) if widest <= EXACT_WIDTH else _factored_root(a, g, d, rounding)
        blocks[key] = {k: t.to(own["rows"].dtype) for k, t in made.items()}
    rest = {
        k: (c.clamp(min=0) + _believed(_precision(prior[k], c)) + damping).rsqrt()
        for k, c in factors["diagonal"].items()
    }
    return {"blocks": blocks, "diagonal": rest}


def _exact_root(a: Tensor, g: Tensor, d: Tensor) -> dict[str, Tensor]:
    """With A' = U diag(λ) Uᵀ and G = V diag(γ) Vᵀ: left = V, right = U, scale = (γ ⊗ λ + 1)^-½, stretch = D^-½."""
    gamma, left = _spectrum(g)
    values, right = _spectrum(_rescaled(a, d))
    scale = (gamma.unsqueeze(-1) * values.unsqueeze(-2) + 1).rsqrt()
    return {"left": left, "right": right, "scale": scale, "stretch": d.rsqrt()}


def _factored_root(a: Tensor, g: Tensor, d: Tensor, rounding: float) -> dict[str, Tensor]:
    """left leftᵀ = (G + I/π)⁻¹ and right rightᵀ = (A' + πI)⁻¹."""
    a = _rescaled(a, d)
    pi = _divided(_mean_eigenvalue(a), _mean_eigenvalue(g))
    left = _inverse_root(g, 1 / pi + rounding * g.shape[-1] * _mean_eigenvalue(g))
    right = _inverse_root(a, pi + rounding * a.shape[-1] * _mean_eigenvalue(a))
    return {"left": left, "right": right, "stretch": d.rsqrt()}


def _divided(a: Tensor, g: Tensor) -> Tensor:
    """π = √(a / g), but within what is left of it in float32 where one factor is all but zero.

    There the data say nothing beside the prior, whose part is 1, and any π far above a and far below 1 / g gives (G + I/π) ⊗
    (A' + πI) ≈ I.
    """
    smallest = torch.finfo(torch.float64).tiny
    from_zero = torch.where(a > 0, a / NOTHING, NOTHING / g.clamp(min=smallest))
    from_zero = torch.where((a > 0) | (g > 0), from_zero, torch.ones_like(a))
    return torch.where(a * g > NOTHING**2, (a / g.clamp(min=smallest)).sqrt(), from_zero)


def _rescaled(a: Tensor, d: Tensor) -> Tensor:
    """D^-½ A D^-½."""
    root = d.rsqrt()
    return a / d if a.dim() == 2 else a * (root.unsqueeze(-1) * root.unsqueeze(-2))


def _spectrum(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rounding's negative ones as zeros, and eigenvectors; a diagonal matrix is in its axes already."""
    if factor.dim() == 2:
        return factor.clamp(min=0), torch.ones_like(factor)
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp(min=0), vectors


def _mean_eigenvalue(factor: Tensor) -> Tensor:
    """(g,)."""
    return (factor if factor.dim() == 2 else factor.diagonal(dim1=-2, dim2=-1)).mean(-1)


def _inverse_root(factor: Tensor, offset: Tensor) -> Tensor:
    """R with R Rᵀ = (factor + offset · I)⁻¹."""
    if factor.dim() == 2:
        return (factor.clamp(min=0) + offset.unsqueeze(-1)).rsqrt()
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    lower = torch.linalg.cholesky_ex(factor + offset.reshape(-1, 1, 1) * unit).L
    return torch.linalg.solve_triangular(lower, unit.expand_as(lower), upper=False).mT


def _columns_of_prior(key: str, own: Mapping[str, Tensor], prior: Mapping[str, Any], like: Weights) -> Tensor:
    """Precisions (g, c) in float64."""
    g, o = own["rows"].shape[:2]
    parts = [_precision(prior[k], like[k]).double().reshape(g, o, -1).mean(1) for k in key.split(JOINED)]
    return torch.cat(parts, -1)


def require_alike_rows(factors: Factors, prior: Mapping[str, Any], like: Weights, name: str) -> None:
    """Raise where prior precisions differ between a layer's outputs, which no Kronecker factor can say."""
    for key, own in factors["blocks"].items():
        g, o = own["rows"].shape[:2]
        for k in key.split(JOINED):
            each = _precision(prior[k], like[k]).reshape(g, o, -1)
            if bool((each.amax(1) - each.amin(1) > UNLIKE * each.amax(1)).any()):
                raise NotSupported(
                    f"the prior's precisions of {k} differ between the outputs of its layer, from {float(each.min()):.3g} to "
                    f"{float(each.max()):.3g}, which {name}'s factors cannot say; take pl.VOGN, pl.IVON or pl.NaturalGradientVI"
                )


def _precision(value: float | Tensor, like: Tensor) -> Tensor:
    return value.expand_as(like) if isinstance(value, Tensor) else torch.zeros_like(like) + value


def _believed(precision: Tensor) -> Tensor:
    return torch.where(precision > 0, precision, LOOSEST)


# --- what roots are for ---


def squared(roots: Roots) -> Inverse:
    """Λ⁻¹ of its roots."""
    blocks = {}
    for key, own in roots["blocks"].items():
        if "scale" in own:
            blocks[key] = {**own, "scale": own["scale"].square()}
        else:
            sides = {side: _with_itself(own[side]) for side in ("left", "right")}
            blocks[key] = {**sides, "stretch": own["stretch"]}
    return {"blocks": blocks, "diagonal": {k: s * s for k, s in roots["diagonal"].items()}}


def _with_itself(root: Tensor) -> Tensor:
    """R Rᵀ, of a diagonal matrix too."""
    return root.square() if root.dim() == 2 else root @ root.mT


def precondition(inverse: Inverse, gradient: Weights) -> Weights:
    """Λ⁻¹ gradient."""
    return _through(inverse, gradient, _preconditioned, lambda variance, v: variance * v)


def deviations(roots: Roots, noise: Weights) -> Weights:
    """Draws from N(0, Λ⁻¹), made of standard normals in the shapes of the unknowns."""
    return _through(roots, noise, _spread, lambda s, v: s * v)


def _preconditioned(own: Mapping[str, Tensor], matrices: Tensor) -> Tensor:
    stretch = own["stretch"].unsqueeze(-2)
    matrices = matrices * stretch
    if "scale" not in own:
        return _between(own["left"], matrices, own["right"]) * stretch
    turned = own["scale"] * _between(_transposed(own["left"]), matrices, own["right"])
    return _between(own["left"], turned, _transposed(own["right"])) * stretch


def _spread(own: Mapping[str, Tensor], z: Tensor) -> Tensor:
    if "scale" in own:
        z = own["scale"] * _between(_transposed(own["left"]), z, own["right"])
    return _between(own["left"], z, _transposed(own["right"])) * own["stretch"].unsqueeze(-2)


def _between(left: Tensor, matrices: Tensor, right: Tensor) -> Tensor:
    """left @ matrices @ right, each of which may be the diagonal of a matrix."""
    found = left.unsqueeze(-1) * matrices if left.dim() == 2 else left @ matrices
    return found * right.unsqueeze(-2) if right.dim() == 2 else found @ right


def _transposed(factor: Tensor) -> Tensor:
    return factor if factor.dim() == 2 else factor.mT


def _through(
    roots: Roots | Inverse,
    vector: Weights,
    of_block: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    of_rest: Callable[[Tensor, Tensor], Tensor],
) -> Weights:
    found: Weights = {}
    for key, own in roots["blocks"].items():
        names, (g, o) = key.split(JOINED), own["left"].shape[:2]
        parts = [vector[k].reshape(g, o, -1).to(own["left"].dtype) for k in names]
        matrices = of_block(own, torch.cat(parts, -1) if len(parts) > 1 else parts[0])
        for k, part in zip(names, matrices.split([p.shape[-1] for p in parts], -1), strict=True):
            found[k] = part.reshape(vector[k].shape).to(vector[k].dtype)
    for k, s in roots["diagonal"].items():
        found[k] = of_rest(s, vector[k])
    return {k: found[k] for k in vector}


# --- the answer ---


def gaussian(model: Any, mean: Weights, factors: Factors, prior: Mapping[str, float | Tensor]) -> Kronecker:
    """N(mean, Λ⁻¹), exact for every width; a weight with neither prior nor curvature is an error."""
    blocks = []
    for key, own in factors["blocks"].items():
        weight, _, bias = key.partition(JOINED)
        d = _columns_of_prior(key, own, prior, mean)
        block, _ = block_from_factors(weight, bias or None, own["columns"], own["rows"], d)
        dtype = mean[weight].dtype  # factors of a half-precision network are sums in float32
        blocks.append(Block(weight, bias or None, *(t.to(dtype) for t in (block.left, block.right, block.scale))))
    scale = {}
    for k, c in factors["diagonal"].items():
        precision = c.clamp(min=0) + _precision(prior[k], c)
        if not bool((precision > 0).all() and precision.isfinite().all()):
            raise ValueError(
                f"the precision of {k} is {float(precision.min()):.3g} somewhere, so its variance is infinite: no data speak of "
                "it (dead units, unused inputs) and it has no prior; give it pl.priors.Normal()"
            )
        scale[k] = precision.rsqrt().to(mean[k].dtype)
    return Kronecker(model, mean, blocks, scale)
