"""Kronecker factors: a layer's curvature as (something of its inputs) ⊗ (something of its output gradients).

For one layer with inputs a and columns g of output gradients, at N examples with T positions each,

    Σᵢ (Σₜ aᵢₜ gᵢₜᵀ)(...)ᵀ  ≈  (Σᵢₜ aᵢₜ aᵢₜᵀ) ⊗ (Σᵢₜ gᵢₜ gᵢₜᵀ) / (N T),

which treats positions as further examples (Martens & Grosse, 2015; Eschenhagen et al., 2023, "expand"). It is exact for
one example without positions, and for linear networks with squared loss. Factors are sums over examples, so batches
and processes can add theirs up.

A weight is seen as a matrix (groups, rows, columns): its first axis, split into groups, beside all its other axes; a
bias is one more column. Weights that no such layer uses keep their exact diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .diagonal import squares
from .rules.embedding import Embedding
from .rules.rule import MatrixRule, blocks_of, room
from .tracing import Plan, Traced


@dataclass(frozen=True)
class Block:
    """A weight, the bias that is one more column of it (or None), and the calls that use them."""

    weight: str
    bias: str | None
    calls: tuple[int, ...]


def blocks(plan: Plan, names: Iterable[str]) -> list[Block]:
    """The weights that have Kronecker factors."""
    wanted, found = set(names), []
    for name in sorted({n for call in plan.calls for n in call.names} & wanted):
        uses = plan.uses(name)
        if name in plan.fallback or any(role != "weight" for _, role in uses):
            continue
        calls = [plan.calls[i] for i, _ in uses]
        direct = all(call.weight is not None and call.weight.name == name for call in calls)
        if (
            direct
            and len({type(call.rule) for call in calls}) == 1
            and isinstance(calls[0].rule, MatrixRule | Embedding)
        ):
            found.append(Block(name, _joined_bias(plan, calls, wanted), tuple(i for i, _ in uses)))
    return found


def _joined_bias(plan: Plan, calls: list[Any], wanted: set[str]) -> str | None:
    biases = {call.bias.name if call.bias is not None else None for call in calls}
    bias = next(iter(biases))
    if len(biases) != 1 or bias is None or bias not in wanted or bias in plan.fallback:
        return None
    alone = len(plan.uses(bias)) == len(calls)
    return bias if alone and getattr(calls[0].rule, "rows_are_outputs", False) else None


def factors(traced: Traced, columns: Iterable[Tensor], weights: Tensor | None) -> dict[str, Any]:
    """{"blocks": {weight: {"rows", "columns", "count"}}, "diagonal": {the rest}}, all sums over examples.

    Args:
        traced: The pass.
        columns: Blocks of columns (r, N, outputs...), already multiplied by the root of the examples' weights.
        weights: The examples'; None counts each once.
    """
    plan = traced.plan
    chosen = blocks(plan, traced.names)
    covered = {n for b in chosen for n in (b.weight, b.bias) if n is not None}
    rest = tuple(n for n in traced.names if n not in covered)
    found: dict[str, Any] = {b.weight: _input_side(traced, b, weights) for b in chosen}
    outputs: dict[str, Any] = {b.weight: None for b in chosen}
    diagonal: dict[str, Any] = {n: torch.zeros_like(traced.params[n]) for n in rest}
    for some in columns:
        slopes = traced.pull(some)
        for b in chosen:
            for i in b.calls:
                outputs[b.weight] = _plus(outputs[b.weight], _output_side(traced, i, slopes[i]))
        if rest:
            diagonal = {n: diagonal[n] + v for n, v in squares(traced, some, rest, slopes).items()}
    for b in chosen:
        sides = (outputs[b.weight], found[b.weight]["inputs"])
        rows, others = sides if getattr(plan.calls[b.calls[0]].rule, "rows_are_outputs", False) else sides[::-1]
        found[b.weight] = {"rows": rows, "columns": others, "count": found[b.weight]["count"]}
    return {"blocks": found, "diagonal": diagonal}


def _input_side(traced: Traced, block: Block, weights: Tensor | None) -> dict[str, Any]:
    total: Any = None
    count: Any = None
    for i in block.calls:
        rule, layout, given = traced.plan.calls[i].rule, traced.plan.layouts[i], traced.given[i]
        if isinstance(rule, Embedding):
            ones = traced.outputs.new_ones(traced.examples)
            often = rule.counts(given, ones if weights is None else weights, layout, traced.examples)
            total, count = _plus(total, often.unsqueeze(0)), _plus(count, often.sum())
            continue
        flat = rule.spread * given.numel() * given.element_size() // traced.examples
        for begin, end in blocks_of(traced.examples, flat, room(given.device)):
            part = rule.right(layout.take(given, begin, end, traced.examples), layout, end - begin)
            part = part.to(torch.promote_types(part.dtype, torch.float32))
            own = None if weights is None else weights[begin:end].to(part.dtype)
            often = part.new_full((), end - begin) if own is None else own.sum()
            new = _with_bias(part, own, often * part.shape[2]) if block.bias else _summed(part, own)
            total, count = _plus(total, new), _plus(count, often * part.shape[2])
    first = traced.plan.calls[block.calls[0]].rule
    return {"inputs": first.sort_right(total) if isinstance(first, MatrixRule) else total, "count": count}


def _output_side(traced: Traced, i: int, slope: Tensor) -> Tensor:
    rule, layout = traced.plan.calls[i].rule, traced.plan.layouts[i]
    if isinstance(rule, Embedding):
        return rule.slope_products(traced.given[i], slope, layout, traced.examples).unsqueeze(0)
    left = rule.lefts(slope, layout, traced.examples).flatten(0, 1)
    left = left.to(torch.promote_types(left.dtype, torch.float32))
    return rule.sort_left(_summed(left))


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


def _summed(each: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ over examples (by their weights) and positions of (N, G, T, c) ⊗ itself: (G, c, c)."""
    heavy = each if weights is None else each * weights.reshape(-1, 1, 1, 1)
    if each.shape[2] > 1 and each.stride(-1) != 1:  # as after a convolution: laid flat it would have to be copied
        return (heavy.mT @ each).sum(0)
    flat, other = (t.transpose(0, 1).flatten(1, 2) for t in (each, heavy))
    return other.mT @ flat


def _with_bias(each: Tensor, weights: Tensor | None, count: Tensor) -> Tensor:
    """The same with a one at the end of every input."""
    if each.shape[0] * each.shape[2] < each.shape[3]:
        return _summed(torch.cat([each, torch.ones_like(each[..., :1])], -1), weights)
    heavy = each if weights is None else each * weights.reshape(-1, 1, 1, 1)
    sums = heavy.sum((0, 2)).unsqueeze(1)  # (G, 1, c)
    corner = count.expand(sums.shape[0], 1, 1)
    return torch.cat([torch.cat([_summed(each, weights), sums.mT], 2), torch.cat([sums, corner], 2)], 1)
