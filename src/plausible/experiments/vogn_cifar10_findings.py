"""What the study of natural-gradient methods on CIFAR-10 found, in words that follow from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .results import Result
from .study import comparable
from .vogn_cifar10_pictures import COLOURS, NETWORKS, curve, scorecard
from .vogn_cifar10_published import PUBLISHED, SCORECARD, STRANGERS

# How much worse than the published row one may be; below zero where more is better.
TOLERANCES = {"accuracy": -1.0, "nll": 0.02, "ece": 0.015}
BEHIND = 2.0  # points of accuracy by which VOGN may be behind Adam
LOOK_EVERY = 20  # epochs, at which it is looked
WORDS = {"accuracy": ("accuracy", ".2f"), "nll": ("NLL", ".3f"), "ece": ("ECE", ".3f")}
POINTS = ("adam", "ogn", "kfac")  # methods that predict with one network

Results = Mapping[str, Result]


def shortfalls(name: str, result: Result) -> dict[str, float]:
    """By how many tolerances a result is worse than the published row, by the score."""
    published = PUBLISHED[name].values
    return {key: (result.scores[key].mean - published[key]) / unit for key, unit in TOLERANCES.items()}


def behind(epochs: Sequence[float], accuracy: Sequence[float], adam: Result) -> list[float]:
    """By how many points an accuracy at these epochs is below Adam's, in a straight line between Adam's looks."""
    return [float(other - own) for other, own in zip(np.interp(epochs, *curve(adam)), accuracy, strict=True)]


def findings(results: Results) -> list[str]:
    """Where VOGN is beside the published rows and beside Adam, and how the others are."""
    found = [line for network in NETWORKS for line in _published_row(results, network)]
    found += [line for network in NETWORKS for line in _beside_adam(results, network)]
    found += [line for network in NETWORKS for line in _likeliest(results, network)]
    return found + _cells(results) + _strangers(results)


def _published_row(results: Results, network: str) -> list[str]:
    name = f"{network}-vogn"
    if name not in results or comparable(results[name].row, PUBLISHED[name]) is None:
        return []
    result, published = results[name], PUBLISHED[name].values
    missed = [
        f"{WORDS[key][0]}: {result.scores[key].mean:{WORDS[key][1]}} misses {published[key] + TOLERANCES[key]:{WORDS[key][1]}} "
        f"by {(short - 1) * abs(TOLERANCES[key]):{WORDS[key][1]}}"
        for key, short in shortfalls(name, result).items()
        if short > 1
    ]
    told = f"VOGN on {NETWORKS[network]}: within 1 point of accuracy, 0.02 of NLL and 0.015 of ECE of the published or better"
    return [f"{told}, but for {'; '.join(missed)}" if missed else told]


def _beside_adam(results: Results, network: str) -> list[str]:
    vogn, adam = results.get(f"{network}-vogn"), results.get(f"{network}-adam")
    if vogn is None or adam is None:
        return []
    looks = np.arange(LOOK_EVERY, vogn.row.epochs, LOOK_EVERY)
    below = behind(list(looks), list(np.interp(looks, *curve(vogn))), adam)
    missed = [f"{points:.1f} at epoch {at}" for at, points in zip(looks, below, strict=True) if points > BEHIND]
    worst = max(below)
    told = f"VOGN on {NETWORKS[network]} beside Adam, at every twentieth epoch (looks joined by straight lines)"
    if missed:
        return [f"{told}: more than {BEHIND:g} points of accuracy behind, {', '.join(missed)}"]
    return [f"{told}: {worst:.1f} points of accuracy behind at most" if worst > 0 else f"{told}: never behind"]


def _likeliest(results: Results, network: str) -> list[str]:
    told = {m: r for m, r in _methods(results, network).items() if m not in POINTS}
    published = [PUBLISHED[name].values["nll"] for m in COLOURS if (name := f"{network}-{m}") in PUBLISHED]
    if not told:
        return []
    best = min(told, key=lambda m: told[m].scores["nll"].mean)
    return [
        f"the lowest NLL of the methods that average, on {NETWORKS[network]}: {best} with "
        f"{told[best].scores['nll'].mean:.3f}; the best published is {min(published)}"
    ]


def _methods(results: Results, network: str) -> dict[str, Result]:
    return {r.row.method: r for r in results.values() if r.row.network == network}  # type: ignore[attr-defined]


def _cells(results: Results) -> list[str]:
    wins = scorecard(results)
    networks = sum(f"{network}-vogn" in results for network in NETWORKS)
    if not networks:
        return []
    others = sorted((m for m in wins if wins[m] and m != "vogn"), key=lambda m: -wins[m])
    return [
        f"best or tied, in cells of NLL, ECE and AUROC: VOGN in {wins['vogn']} of {3 * networks}, in the paper in "
        f"{SCORECARD[0]} of {SCORECARD[1]}, beside fewer methods; {', '.join(f'{m} {wins[m]}' for m in others)}"
    ]


def _strangers(results: Results) -> list[str]:
    told = [
        f"{results[name].row.method} {results[name].scores['fpr95'].mean:.2f} / {results[name].scores['svhn'].mean:.2f} "  # type: ignore[attr-defined]
        f"({fpr95:.2f} / {auroc:.2f})"
        for name, (fpr95, auroc) in STRANGERS.items()
        if name in results
    ]
    return [f"SVHN under ResNet-18, FPR95 / AUROC of the entropy (published): {', '.join(told)}"] if told else []
