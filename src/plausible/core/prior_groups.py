"""Which prior covers which unknowns: name patterns, unknown scales of priors, and posteriors used as priors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from .priors.scaled import Factor, Place, Rescaled, ScaledPrior
from .unknowns import bind, unknowns

Patterns = str | Iterable[str] | Callable[[str], bool]


@dataclass(frozen=True)
class PriorGroup:
    """One prior and the names it covers; `label` names its own unknowns: `prior.<label>.scale`."""

    label: str
    prior: Any
    names: tuple[str, ...]
    joint: bool = False  # a posterior as a prior: one density of all its unknowns together
    factors: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)  # of a scaled prior, by weight

    def unknowns(self) -> dict[str, Any]:
        """The hyperpriors of the prior's own unknowns under their full names."""
        if self.joint:
            return {}
        if self.factors:
            return {self._full(f.name): f.hyperprior for own in self.factors.values() for f in own}
        return {self._full(name): h for name, h in unknowns(self.prior).items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of those that are not single numbers."""
        return {self._full(f.name): f.shape for own in self.factors.values() for f in own}

    @property
    def non_centred(self) -> bool:
        """Whether `params` hold z instead of w = s · z."""
        return bool(self.factors) and not self.prior.centred

    def scale(self, name: str, natural: Mapping[str, Tensor]) -> Tensor:
        """What multiplies a weight of a scaled prior, in a shape that broadcasts against it."""
        first, *rest = [f.seen(natural[self._full(f.name)]) for f in self.factors[name]]
        for other in rest:
            first = first * other
        return first

    def log_scale(self, name: str, natural: Mapping[str, Tensor], size: int) -> Tensor:
        """Σ log s over the `size` entries of a weight: log |∂w / ∂z|."""
        parts = [natural[self._full(f.name)].log().sum() * (size // f.size) for f in self.factors[name]]
        return sum(parts[1:], parts[0])

    def scales_of(self, name: str) -> list[str]:
        """The unknowns that multiply a weight."""
        return [self._full(f.name) for f in self.factors.get(name, ())]

    def density(self, name: str, natural: Mapping[str, Tensor]) -> Any:
        """The prior of `params[name]`, given the values of the prior's own unknowns."""
        if self.factors:
            standard = self.prior.standard
            return standard if self.non_centred else Rescaled(standard, self.scale(name, natural))
        own = self.unknowns()
        return bind(self.prior, {k.rpartition(".")[2]: natural[k] for k in own}) if own else self.prior

    def _full(self, name: str) -> str:
        return f"prior.{self.label}.{name}" if self.label else f"prior.{name}"


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


def group(prior: Any, places: Mapping[str, Place], extra: Iterable[str] = ()) -> list[PriorGroup]:
    """Divide the weights (and, for a posterior, also `extra` unknowns) among the priors that were given."""
    names = list(places)
    if hasattr(prior, "components") and hasattr(prior, "log_prob"):
        return [_posterior_group(prior, names, list(extra))]
    if not isinstance(prior, Mapping):
        return [_group("", prior, places)]
    left, groups = list(names), []
    for pattern, member in prior.items():
        covered = tuple(n for n in left if fnmatchcase(n, pattern))
        left = [n for n in left if n not in covered]
        if not any(fnmatchcase(n, pattern) for n in names):
            raise ValueError(f"prior pattern {pattern!r} matches no weight; there are {_some(names)}")
        if covered:
            groups.append(_group(pattern, member, {n: places[n] for n in covered}))
    if left:
        raise ValueError(f'no prior pattern matches {_some(left)}; add one, or "*" as the last pattern')
    return groups


def _group(label: str, prior: Any, places: Mapping[str, Place]) -> PriorGroup:
    if isinstance(prior, ScaledPrior):
        settled = prior.settled()
        if settled is None:
            return PriorGroup(label, prior, tuple(places), factors=prior.factors(places))
        prior = settled
    if isinstance(prior, type) or not callable(getattr(prior, "log_prob", None)):
        name = f"the class {prior.__name__}" if isinstance(prior, type) else type(prior).__name__
        raise TypeError(f"a prior has log_prob(w), got {name}; try pl.priors.Normal(scale=1.0)")
    return PriorGroup(label, prior, tuple(places))


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
