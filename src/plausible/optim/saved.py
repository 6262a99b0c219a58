"""Whether a saved state is that of an optimiser like this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .witness import NAME

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

LIKE_WEIGHTS = ("mean", "momentum", "first", "curvature", "diagonal")  # what has one entry for each of a weight's
SUMS = ("momentum", "first", "curvature", "diagonal", "rows", "columns")  # what is added up little by little


def require_fitting(optimizer: BayesianOptimizer, saved: Mapping[str, Any]) -> None:
    """Raise, with the first difference, where `saved` is of another method, of other weights, or of other groups."""
    groups, own = saved["param_groups"], optimizer.param_groups
    _require_method(type(optimizer).__name__, groups)
    lacking = sorted(own[0].keys() - groups[0].keys() - {"method", "param_names"})
    if lacking:
        raise ValueError(
            f"the state has no {lacking[0]}, which {type(optimizer).__name__} goes by: it is that of another version of "
            "plausible; make the optimiser anew"
        )
    if all("param_names" in g for g in groups):
        _require_names([_names(g) for g in groups], [_names(g) for g in own])
    _require_shapes(saved, own)


def keep_precision(optimizer: BayesianOptimizer, saved: Mapping[str, Any]) -> None:
    """What is kept in float32 of weights in half precision stays so: torch rounds a state to the type of its weight."""
    numbers = [n for g in saved["param_groups"] for n in g["params"]]
    for n, p in zip(numbers, [p for g in optimizer.param_groups for p in g["params"]], strict=True):
        for what, value in saved["state"].get(n, {}).items():
            if what in SUMS and p.element_size() < 4:
                optimizer.state[p][what] = value.to(p.device, torch.float32, copy=True)


def _names(group: Mapping[str, Any]) -> list[str]:
    return [k for k in group["param_names"] if k != NAME]


def _require_method(method: str, groups: Sequence[Mapping[str, Any]]) -> None:
    if any("num_data" not in g for g in groups):
        raise ValueError(
            f"this is the state of none of pl.optim's optimisers; give {method} what the state_dict() of {method} gave"
        )
    known = groups[0].get("method", method)
    if known != method:
        raise ValueError(f"this is the state of {known}, and the optimiser is {method}; make a pl.optim.{known} for it")


def _require_names(saved: list[list[str]], own: list[list[str]]) -> None:
    theirs, ours = ([k for group in groups for k in group] for groups in (saved, own))
    for lacking, there, where in ((ours, theirs, "the state"), (theirs, ours, "this optimiser")):
        strange = [k for k in lacking if k not in there]
        if strange:
            raise ValueError(
                f"{where} has no weight {strange[0]}; make the optimiser of a network as the state's, with the same weights "
                "trainable"
            )
    if saved == own:
        return
    a, b = ([group[0] for group in groups if group] for groups in (saved, own))
    if a == b:
        a, b = next(([x], [y]) for x, y in zip(theirs, ours, strict=True) if x != y)
    raise ValueError(
        f"the state's groups of weights begin at {', '.join(a)} and this optimiser's at {', '.join(b)}; make it with the "
        "prior_precision that the state's had, its patterns in the same order"
    )


def _require_shapes(saved: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
    numbers = [n for g in saved["param_groups"] for n in g["params"]]
    weights = [(k, p) for g in own for k, p in zip(g["param_names"], g["params"], strict=True)]
    for n, (name, weight) in zip(numbers, weights, strict=False):  # torch compares how many there are
        entries = saved["state"].get(n, {})
        for value in [*(entries.get(k) for k in LIKE_WEIGHTS), *entries.get("draws", [])[:1]]:
            if isinstance(value, Tensor) and value.shape != weight.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(value.shape)} in the state and {tuple(weight.shape)} in the network; make "
                    "the network as it was"
                )
