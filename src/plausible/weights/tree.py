"""Nested dictionaries of tensors: what a method's state, a posterior and a checkpoint are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # A tensor, or a dictionary of trees. Python's type system says it less clearly than this line.


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to every tensor of `tree` (and to the tensors at the same places of `others`)."""
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    return function(tree, *others)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) pairs, names joined by `/`, in sorted order so that files do not depend on insertion."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            name = key.replace("%", "%25").replace("/", "%2F")
            yield from leaves(tree[key], f"{path}/{name}" if path else name)
    else:
        yield path, tree


def from_leaves(pairs: Mapping[str, Tensor]) -> Tree:
    """Rebuild the nested dictionary that `leaves` took apart."""
    tree: dict[str, Any] = {}
    for path, value in pairs.items():
        *parents, name = (part.replace("%2F", "/").replace("%25", "%") for part in path.split("/"))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def stack(trees: Sequence[Tree]) -> Tree:
    """Join equal trees along a new leading axis."""
    return tree_map(lambda *tensors: torch.stack(tensors), trees[0], *trees[1:])


def unstack(tree: Tree, index: int) -> Tree:
    """The tree at one place of the leading axis."""
    return tree_map(lambda t: t[index], tree)


def leading_axis(tree: Tree) -> int:
    """How many trees a stacked tree holds."""
    _, first = next(leaves(tree))
    return first.shape[0]


def clone(tree: Tree) -> Tree:
    """A copy that shares no memory with the original."""
    return tree_map(lambda t: t.detach().clone(), tree)


def to(tree: Tree, device: torch.device | str | None) -> Tree:
    """The same tree on another device."""
    return tree if device is None else tree_map(lambda t: t.to(device), tree)


def num_bytes(tree: Tree) -> int:
    """Memory that the tensors of a tree take."""
    return sum(t.numel() * t.element_size() for _, t in leaves(tree))


def copy_into(target: Tree, source: Tree) -> None:
    """Write `source` into the memory of `target`, skipping what already is that memory."""
    if isinstance(target, Mapping):
        for key, value in target.items():
            if isinstance(value, Mapping) and not value:
                continue  # a file keeps no empty dictionaries
            copy_into(value, source[key])
    elif target.data_ptr() != source.data_ptr():
        target.copy_(source)
