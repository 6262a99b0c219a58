"""Which prior covers which unknowns: name patterns, unknown scales of priors, and posteriors used as priors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .unknowns import unknowns

Patterns = str | Iterable[str] | Callable[[str], bool]


@dataclass(frozen=True)
class PriorGroup:
    """One prior and the names it covers; `label` names its own unknowns: `prior.<label>.scale`."""

    label: str
    prior: Any
    names: tuple[str, ...]
    joint: bool = False  # a posterior as a prior: one density of all its unknowns together

    def unknowns(self) -> dict[str, Any]:
        """The prior's own unknowns under their full names."""
        middle = f"{self.label}." if self.label else ""
        return {} if self.joint else {f"prior.{middle}{field}": h for field, h in unknowns(self.prior).items()}


def matches(name: str, patterns: Patterns) -> bool:
    """Whether a name is meant by glob(s) or by a predicate."""
    if callable(patterns):
        return bool(patterns(name))
    return any(fnmatchcase(name, p) for p in ([patterns] if isinstance(patterns, str) else patterns))


def choose(names: Iterable[str], patterns: Patterns, what: str = "parameters") -> list[str]:
    """The names that a pattern means; a pattern that means none is an error, which says `what` it was given as."""
    names = list(names)
    chosen = [n for n in names if matches(n, patterns)]
    for pattern in [] if callable(patterns) else [patterns] if isinstance(patterns, str) else patterns:
        if not any(fnmatchcase(n, pattern) for n in names):
            raise ValueError(f"{what}={pattern!r} matches no trainable weight; there are {_some(names)}")
    if not chosen:
        raise ValueError(f"{what}={patterns!r} matches no trainable weight; there are {_some(names)}")
    return chosen


def group(prior: Any, names: list[str], extra: Iterable[str] = ()) -> list[PriorGroup]:
    """Divide the weights `names` (and, for a posterior, also `extra` unknowns) among the priors that were given."""
    if hasattr(prior, "components") and hasattr(prior, "log_prob"):
        return [_posterior_group(prior, names, list(extra))]
    if not isinstance(prior, Mapping):
        if not callable(getattr(prior, "log_prob", None)):
            raise TypeError(f"a prior has log_prob(w), got {type(prior).__name__}; try pl.priors.Normal(scale=1.0)")
        return [PriorGroup("", prior, tuple(names))]
    left, groups = list(names), []
    for pattern, member in prior.items():
        covered = tuple(n for n in left if fnmatchcase(n, pattern))
        left = [n for n in left if n not in covered]
        if not any(fnmatchcase(n, pattern) for n in names):
            raise ValueError(f"prior pattern {pattern!r} matches no weight; there are {_some(names)}")
        if covered:
            groups.append(PriorGroup(pattern, member, covered))
    if left:
        raise ValueError(f'no prior pattern matches {_some(left)}; add one, or "*" as the last pattern')
    return groups


def _posterior_group(posterior: Any, names: list[str], extra: list[str]) -> PriorGroup:
    known = list(posterior.model.start)
    missing = [n for n in names if n not in known]
    strange = [n for n in known if n not in [*names, *extra]]
    if missing or strange:
        raise ValueError(
            f"a posterior used as a prior must have this model's unknowns; missing {_some(missing)}, too many {_some(strange)}"
        )
    return PriorGroup("", posterior, tuple(known), joint=True)


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") if names else "none"
