"""Which methods come close to the truth, set against the published order, in words and in a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from ..report.truth import FEWEST_DRAWS, LARGEST_R_HAT, SHARE
from .figure import INTERVAL
from .study import estimate

AGAIN = "hmc-again"  # the truth once more, with other seeds: nothing can be known to be closer
CLEAR = 2.0  # standard errors from which two methods are said to differ


class Point(NamedTuple):
    """What the paper has for a method: agreement with its HMC, total variation from it, and accuracy."""

    label: str
    agreement: float
    total_variation: float
    accuracy: float


# ResNet-20 with filter response normalisation on CIFAR-10 (Izmailov et al., 2021), by the method that is the same here.
PUBLISHED = {
    "map": Point("SGD", 0.8548, 0.190, 0.8344),
    "advi": Point("mean-field VI", 0.8875, 0.136, 0.8645),
    "deep-ensemble": Point("deep ensemble", 0.9152, 0.115, 0.8849),
    "sgld": Point("SGLD", 0.9154, 0.110, 0.8932),
    "sghmc": Point("SGHMC", 0.9198, 0.109, 0.8938),
    "cyclical-sgmcmc": Point("cyclical SGHMC", 0.9267, 0.099, 0.8963),
    AGAIN: Point("HMC", 0.9401, 0.074, 0.8964),
}
RISING = {"agreement": 1.0, "total_variation": -1.0}  # the sign that makes "closer to the truth" larger


@dataclass(frozen=True)
class Pair:
    """Two methods, the one that is closer to the truth in the paper first, and by how much it is closer here.

    Attributes:
        closer: By the paper.
        farther: By the paper.
        gap: Mean over splits of how much closer it is here; negative if the other one is.
        error: Its standard error, of the differences split by split.
    """

    closer: str
    farther: str
    gap: float
    error: float

    @property
    def stands(self) -> str:
        """Whether the order here is the paper's: "same", "reversed" or "open"."""
        if not abs(self.gap) > CLEAR * self.error:
            return "open"
        return "same" if self.gap > 0 else "reversed"

    def __str__(self) -> str:
        first, second = (self.closer, self.farther) if self.gap > 0 else (self.farther, self.closer)
        errors = abs(self.gap) / self.error if self.error > 0 else math.inf
        return f"{first} closer than {second} by {errors:.1f} SE"


def pairs(scores: Mapping[str, Sequence[float]], column: str) -> list[Pair]:
    """Every two methods of the paper that have scores here, one per split."""
    sign, found = RISING[column], []
    for one, other in combinations([m for m in PUBLISHED if m in scores and m != AGAIN], 2):
        ahead = sign * (getattr(PUBLISHED[one], column) - getattr(PUBLISHED[other], column)) > 0
        closer, farther = (one, other) if ahead else (other, one)
        gaps = estimate([sign * (a - b) for a, b in zip(scores[closer], scores[farther], strict=True)])
        found.append(Pair(closer, farther, gaps.mean, gaps.error))
    return found


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's: 1 for the same order, −1 for the reverse, about 0 for none; equal values share their ranks."""
    a, b = _ranks(ours), _ranks(theirs)
    middle = (len(a) + 1) / 2
    product = math.fsum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    size = math.sqrt(math.fsum((x - middle) ** 2 for x in a) * math.fsum((y - middle) ** 2 for y in b))
    return product / size if size > 0 else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def findings(results: Mapping[str, Any], problems: Sequence[str]) -> list[str]:
    """Of each problem: whether its chains are to be trusted, who is closest, and whether the order is the paper's."""
    lines = []
    for problem in problems:
        own = _of(results, problem)
        if AGAIN not in own:
            continue
        lines += [_trust(problem, own[AGAIN].record["details"]["mixing"]), _closest(problem, own)]
        columns = [column for column in RISING if column in own[AGAIN].scores]
        lines += [line for column in columns if (line := _order(problem, own, column))]
    return lines


def _of(results: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """The results of a problem by method."""
    start = f"{problem}-"
    return {name.removeprefix(start): result for name, result in results.items() if name.startswith(start)}


def _trust(problem: str, mixing: Sequence[Mapping[str, float]]) -> str:
    worst, least = max(m["r_hat_95"] for m in mixing), min(m["share"] for m in mixing)
    middle = math.fsum(m["r_hat"] for m in mixing) / len(mixing)
    verdict = (
        "so they are held to be the truth" if least >= SHARE else "so distances from them say less than they should"
    )
    return (
        f"{problem}: {mixing[0]['chains']} chains on each split, twice. R-hat of what they predict is {middle:.3f} in the middle "
        f"and below {worst:.3f} for 95 % of the predictions of the worst run; at least {least:.0%} of a run's predictions have "
        f"R-hat below {LARGEST_R_HAT} and {FEWEST_DRAWS} effective draws, where {SHARE:.0%} are asked: {verdict}"
    )


def _closest(problem: str, own: Mapping[str, Any]) -> str:
    apart = {method: result.scores["total_variation"].mean for method, result in own.items()}
    ceiling = apart.pop(AGAIN)
    if not apart:
        return f"{problem}: two runs of the chains are {ceiling:.3f} apart in total variation"
    order = sorted(apart, key=apart.__getitem__)
    told = ", ".join(f"{method} {apart[method]:.3f}" for method in order)
    return f"{problem}, total variation from the truth, closest first: {told}; two runs of the chains: {ceiling:.3f}"


def _order(problem: str, own: Mapping[str, Any], column: str) -> str | None:
    shared = [method for method in PUBLISHED if method in own and method != AGAIN]
    if len(shared) < 3:
        return None
    name = column.replace("_", " ")
    theirs = [getattr(PUBLISHED[method], column) for method in shared]
    agreed = rank_correlation([own[method].scores[column].mean for method in shared], theirs)
    compared = pairs({method: own[method].record["scores"][column] for method in shared}, column)
    kinds = {kind: [pair for pair in compared if pair.stands == kind] for kind in ("same", "open", "reversed")}
    line = (
        f"{problem}, order by {name} of the {len(shared)} methods that the paper has too: rank correlation {agreed:.2f}; of "
        f"{len(compared)} pairs {len(kinds['same'])} stand as published and {len(kinds['open'])} are within {CLEAR:g} standard "
        f"errors"
    )
    if not kinds["reversed"]:
        return f"{line}; none is the other way round"
    return f"{line}; the other way round are {len(kinds['reversed'])}: {', '.join(map(str, kinds['reversed']))}"


# --- the picture ---

# One kind of method, one colour; within a kind the marks differ, and squares are kept for methods of the paper.
POINT, AROUND, FITTED, DROPPED = "#1f77b4", "#8c8c1a", "#d62728", "#8c564b"
NATURAL, NOISY, EXACT = "#9467bd", "#2ca02c", "#ff7f0e"
NARROW, WIDE = (1, 1.2, 1.5, 2, 3, 5, 7, 8), (1, 2, 5)  # ticks within a power of ten, of a short axis and of a long one
STYLES = {
    "map": ("#7f7f7f", "s"), "deep-ensemble": (POINT, "s"), "swag": (POINT, "o"), "multiswag": (POINT, "D"),
    "laplace": (AROUND, "o"), "laplace-last-layer": (AROUND, "D"),
    "advi": (FITTED, "s"), "bayes-by-backprop": (FITTED, "o"),
    "mc-dropout": (DROPPED, "o"), "concrete-dropout": (DROPPED, "D"),
    "vogn": (NATURAL, "o"), "ogn": (NATURAL, "D"), "ivon": (NATURAL, "^"), "kfac": (NATURAL, "v"), "noisy-kfac": (NATURAL, "P"),
    "sgld": ("#98df8a", "s"), "sghmc": (NOISY, "s"), "cyclical-sgmcmc": ("#0b5d0b", "s"),
    "metropolis": (EXACT, "o"), "mala": (EXACT, "D"), "hmc": (EXACT, "^"), "nuts": (EXACT, "v"),
    AGAIN: ("#000000", "s"),
}  # fmt: skip


def _label(method: str) -> str:
    """With the paper's name of it, where that is another."""
    theirs = PUBLISHED[method].label if method in PUBLISHED else method
    return method if theirs.lower().replace(" ", "-") == method else f"{method} ({theirs})"


def draw(results: Mapping[str, Any], path: Path, problem: str) -> None:
    """Other classes than HMC's against total variation: the paper's on the left, ours on the right; squares are in both.

    Both axes are logarithmic, since one method is tens of times as far away as another.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window and no global state
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(11.0, 5.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for method, point in PUBLISHED.items():
        colour, mark = STYLES[method]
        left.plot(point.total_variation, 1 - point.agreement, mark, color=colour, markersize=7)
    own = _of(results, problem)
    for method in [m for m in STYLES if m in own]:
        scores, (colour, mark) = own[method].scores, STYLES[method]
        apart, agreed = scores["total_variation"], scores["agreement"]
        right.errorbar(
            apart.mean, 1 - agreed.mean, xerr=INTERVAL * apart.error, yerr=INTERVAL * agreed.error, capsize=2, elinewidth=0.8,
            fmt=mark, markersize=7 if method in PUBLISHED else 6, color=colour,
            markerfacecolor=colour if method in PUBLISHED else "white", label=_label(method),
        )  # fmt: skip
    left.set_title("published: ResNet-20 on CIFAR-10", fontsize=9)
    right.set_title(f"ours: a small network on {problem}", fontsize=9)
    for panel, ticks in ((left, NARROW), (right, WIDE)):
        panel.set(xscale="log", yscale="log")
        panel.set_xlabel("total variation from HMC (lower is better)", fontsize=9)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=ticks))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("1 − agreement with HMC (lower is better)", fontsize=9)
    bars, labels = right.get_legend_handles_labels()
    figure.legend([bar[0] for bar in bars], labels, loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Software": None})  # the same numbers give the same file
