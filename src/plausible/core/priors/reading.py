"""Priors as a person types them: "normal(0.5)", "hierarchical(laplace, inverse-gamma(2, 1), per=input)".

A name, and in brackets what its class takes, in its order or by name: numbers, words, and further priors or hyperpriors.
Hyphens, underscores and capitals do not count.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from plausible.core import hyperpriors
from plausible.core.hyperpriors import Hyperprior
from plausible.core.priors.cauchy import Cauchy
from plausible.core.priors.correlated import Correlated
from plausible.core.priors.fan_in import FanIn
from plausible.core.priors.flat import Flat
from plausible.core.priors.hierarchical import PER, Hierarchical
from plausible.core.priors.horseshoe import Horseshoe
from plausible.core.priors.laplace import Laplace
from plausible.core.priors.normal import Normal
from plausible.core.priors.scale_mixture import ScaleMixture
from plausible.core.priors.student_t import StudentT


def _mixture(wide: float = 1.0, narrow: float = math.exp(-6), weight: float = 0.5) -> ScaleMixture:
    """Two normals, `weight` being the wide one's; the defaults are among those of Blundell et al. (2015)."""
    return ScaleMixture((wide, narrow), (weight, 1 - weight))


PRIORS: dict[str, Callable[..., Any]] = {
    "normal": Normal,
    "laplace": Laplace,
    "cauchy": Cauchy,
    "student-t": StudentT,
    "scale-mixture": _mixture,
    "flat": Flat,
    "fan-in": FanIn,
    "hierarchical": Hierarchical,
    "horseshoe": Horseshoe,
    "correlated": Correlated,
}
HYPERPRIORS: dict[str, Callable[..., Any]] = {
    "half-normal": hyperpriors.HalfNormal,
    "half-cauchy": hyperpriors.HalfCauchy,
    "log-normal": hyperpriors.LogNormal,
    "inverse-gamma": hyperpriors.InverseGamma,
}
WORDS: dict[str, Any] = {"true": True, "false": False, **{word: word for word in PER}}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<word>[A-Za-z][\w-]*)|(?P<mark>[(),=]))"
)


def from_string(text: str) -> Any:
    """The prior that a text such as "student-t(5, 1)" names."""
    if not isinstance(text, str):
        raise TypeError(f'a prior is read from a text such as "normal(0.5)", got {text!r}')
    reader = _Reader(text)
    found = reader.value()
    reader.end()
    if isinstance(found, Hyperprior):
        raise ValueError(f"{text!r} is a belief about a scale; put it inside a prior, as in normal({text.strip()})")
    if isinstance(found, str | float | int):
        raise ValueError(f"{text!r} is no prior; known are {', '.join(PRIORS)}")
    return found


class _Reader:
    """Takes a text apart from left to right."""

    def __init__(self, text: str):
        self.text, self.tokens, place = text, [], 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"cannot read {text[place:].strip()[:10]!r} in the prior {text!r}")
            self.tokens.append((found.lastgroup, found.group(found.lastgroup or 0)))
            place = found.end()
        self.place = 0

    def value(self) -> Any:
        kind, token = self._next()
        if kind == "number":
            return float(token)
        if kind != "word":
            raise ValueError(
                f"expected a name or a number instead of {token or 'the end'!r} in the prior {self.text!r}"
            )
        maker = _looked_up(token)
        if not callable(maker):
            return maker
        values, named = self._arguments() if self._peek() == "(" else ([], {})
        return self._made(token, maker, values, named)

    def end(self) -> None:
        if self.place < len(self.tokens):
            raise ValueError(f"expected the end instead of {self._peek()!r} in the prior {self.text!r}")

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        self._next()
        values: list[Any] = []
        named: dict[str, Any] = {}
        while self._peek() != ")":
            if self.place + 1 < len(self.tokens) and self.tokens[self.place + 1] == ("mark", "="):
                name = self._next()[1].replace("-", "_")
                self._next()
                named[name] = self.value()
            else:
                values.append(self.value())
            if self._peek() not in (",", ")"):
                raise ValueError(f"expected , or ) instead of {self._peek() or 'the end'!r} in the prior {self.text!r}")
            if self._peek() == ",":
                self._next()
        self._next()
        return values, named

    def _made(self, name: str, maker: Callable[..., Any], values: list[Any], named: dict[str, Any]) -> Any:
        try:
            return maker(*values, **named)
        except TypeError as error:
            fields = [f.name for f in dataclasses.fields(maker)] if dataclasses.is_dataclass(maker) else []
            takes = ", ".join(f for f in fields if not f.startswith("_")) or "wide, narrow, weight"
            raise ValueError(f"{name} takes ({takes}): {error}") from None

    def _peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def _next(self) -> tuple[str | None, str]:
        token = self.tokens[self.place] if self.place < len(self.tokens) else (None, "")
        self.place += 1
        return token


def _looked_up(name: str) -> Any:
    for known in (PRIORS, HYPERPRIORS, WORDS):
        for word, meaning in known.items():
            if _bare(word) == _bare(name):
                return meaning
    raise ValueError(
        f"no prior is called {name!r}; known are {', '.join(PRIORS)}, and for scales {', '.join(HYPERPRIORS)}"
    )


def _bare(name: str) -> str:
    return re.sub("[-_]", "", name).lower()
