"""Parameter groups: which weights are in one, and how a prior's patterns make them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from ..core.method import require
from .witness import NAME


def group_weights(group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The network's weights of one parameter group, by name."""
    return {k: p for k, p in zip(group["param_names"], group["params"], strict=True) if k != NAME}


def grouped(names: Mapping[str, Tensor], precision: float | Mapping[str, float]) -> list[dict[str, Any]]:
    """One parameter group for every pattern of `prior_precision`."""
    table = precision if isinstance(precision, Mapping) else {"*": precision}
    left, groups = dict(names), []
    for pattern, value in table.items():
        if not hasattr(value, "__float__"):
            raise TypeError(
                f"prior_precision must be a number, 1 / scale² of a normal prior, got {type(value).__name__}"
            )
        require(value >= 0, f"prior_precision must not be negative, got {value} for {pattern!r}")
        if not any(fnmatchcase(k, pattern) for k in names):
            raise ValueError(f"prior_precision has the pattern {pattern!r}, which matches none of {', '.join(names)}")
        covered = {k: p for k, p in left.items() if fnmatchcase(k, pattern)}
        left = {k: p for k, p in left.items() if k not in covered}
        if covered:
            groups.append({"params": list(covered.items()), "prior_precision": float(value)})
    if left:
        raise ValueError(f'prior_precision has no pattern for {", ".join(left)}; add "*" as the last one')
    return groups
