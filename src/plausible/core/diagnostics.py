"""Whether chains agree, and how many independent draws they are worth (Vehtari et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import thermometers
from .likelihoods import Categorical

MOST_SCALARS = 2000  # of a network's weights, evenly spread: enough to see a chain that does not mix
LEAST_ACCEPTANCE = 1e-3  # of a chain, on average; below it the chain stands still
LEAST_E_BFMI = 0.3
FEWEST = 4  # draws of a chain that R-hat and effective sizes can be told of


@dataclass(frozen=True)
class Diagnostics:
    """`ok` if nothing speaks against the posterior; `messages` in plain words; `table` by quantity."""

    messages: tuple[str, ...]
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ok: bool = True


def together(*found: Diagnostics | None) -> Diagnostics | None:
    """All messages, each once; None where nothing is said."""
    said = [d for d in found if d is not None]
    if len(said) < 2:
        return said[0] if said else None
    table = {k: row for d in said for k, row in d.table.items()}
    return Diagnostics(tuple(dict.fromkeys(m for d in said for m in d.messages)), table, all(d.ok for d in said))


def split_chains(chains: Tensor) -> Tensor:
    """(C, K, ...) -> (2C, K // 2, ...): a drift inside one chain then shows as a disagreement of its halves."""
    half = chains.shape[1] // 2
    return torch.cat([chains[:, :half], chains[:, chains.shape[1] - half :]])


def rank_normalised(chains: Tensor) -> Tensor:
    """Replace values by normal scores of their ranks over all chains; the mean of tied ranks for ties."""
    flat = chains.flatten(0, 1)
    count = flat.shape[0]
    values, order = flat.sort(dim=0)
    position = torch.arange(1, count + 1, dtype=torch.float64, device=flat.device).reshape(-1, *[1] * (flat.dim() - 1))
    ranks = torch.empty_like(flat, dtype=torch.float64).scatter_(0, order, position.expand(flat.shape))
    if bool((values[1:] == values[:-1]).any()):
        ranks = _average_ties(flat, ranks)
    return torch.special.ndtri((ranks - 0.375) / (count + 0.25)).reshape(chains.shape)


def _quantile(flat: Tensor, q: float) -> Tensor:
    """Along the first axis, linear between neighbours; `torch.quantile` refuses more than 16 million numbers."""
    count = flat.shape[0]
    place = count * q + (
        1 - q
    )  # counted from 1, and rounded as ArviZ does: a tail's edge is one of the draws, or just below it
    low = min(int(place), count - 1)
    lower, upper = (flat.kthvalue(k, dim=0).values for k in (low, low + 1))
    between = (1 - (place - low)) * lower + (place - low) * upper
    return torch.where(lower == upper, lower, between)


def _median(flat: Tensor) -> Tensor:
    """Half of each neighbour, to the bit: both are then equally far from it, and ties in rank."""
    count = flat.shape[0]
    lower, upper = (flat.kthvalue(k, dim=0).values for k in ((count + 1) // 2, count // 2 + 1))
    return 0.5 * lower + 0.5 * upper


def _undefined(chains: Tensor) -> Tensor:
    return torch.full(chains.shape[2:], math.nan, dtype=torch.float64, device=chains.device)


def _undefined_where_nan(values: Tensor, chains: Tensor) -> Tensor:
    """Ranks would take a missing number for the largest."""
    return values.masked_fill(chains.isnan().flatten(0, 1).any(0), math.nan)


def _average_ties(flat: Tensor, ranks: Tensor) -> Tensor:
    columns, column_ranks = flat.reshape(flat.shape[0], -1), ranks.reshape(flat.shape[0], -1).clone()
    for j in range(columns.shape[1]):
        _, inverse, counts = columns[:, j].unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(counts.shape[0], dtype=torch.float64, device=flat.device).scatter_add(
            0, inverse, column_ranks[:, j]
        )
        column_ranks[:, j] = (sums / counts)[inverse]
    return column_ranks.reshape(ranks.shape)


def _between_within(chains: Tensor) -> Tensor:
    count = chains.shape[1]
    within = chains.var(1).mean(0)
    between = chains.mean(1).var(0) if chains.shape[0] > 1 else torch.zeros_like(within)
    return (((count - 1) / count * within + between) / within).sqrt()


def r_hat(chains: Tensor) -> Tensor:
    """Rank-normalised split R-hat of draws (chains, draws, ...): the larger of the bulk's and the tails'.

    NaN, as in ArviZ, of fewer than four draws and where a number is missing.
    """
    if chains.shape[1] < FEWEST:
        return _undefined(chains)
    split = split_chains(chains.double())
    # Where all draws are equally far from the median, as two values that come equally often, the bulk alone can tell.
    folded = (split - _median(split.flatten(0, 1))).abs()
    worse = torch.fmax(_between_within(rank_normalised(split)), _between_within(rank_normalised(folded)))
    return _undefined_where_nan(worse, chains)


def _autocovariance(chains: Tensor) -> Tensor:
    count = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    padded = torch.fft.rfft(centred, n=2 * count, dim=1)
    return torch.fft.irfft(padded * padded.conj(), n=2 * count, dim=1)[:, :count] / count


def _ess_of(split: Tensor) -> Tensor:
    """Geyer's initial monotone sequence on the combined autocorrelation of (chains, draws, ...), ended as ArviZ ends it.

    What never changes is known as well as by independent draws, as ArviZ has it too.
    """
    chains, count = split.shape[:2]
    constant = (split == split[:1, :1]).flatten(0, 1).all(0)
    covariance = _autocovariance(split).mean(0)
    within = covariance[0] * count / (count - 1)
    total = covariance[0] + (split.mean(1).var(0) if chains > 1 else 0.0)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: max(2, 2 * ((count - 1) // 2))].unflatten(0, (-1, 2))
    sums = pairs.sum(1)
    # The sum ends before the first pair that is not positive; of that one the even half counts, if it is positive.
    ends = sums <= 0
    ends[-1] = True
    past = ends.to(torch.int8).cumsum(0) > 0
    last = past.to(torch.int8).argmax(0, keepdim=True)
    half = pairs[:, 0].gather(0, last)[0]
    half = torch.where((half > 0) | (sums.gather(0, last)[0] >= 0), half, torch.zeros_like(half))
    monotone = sums.cummin(0).values.masked_fill(past, 0.0)
    time = (-1 + 2 * monotone.sum(0) + half).clamp(min=1 / math.log10(chains * count))
    return (chains * count / time).masked_fill(constant, float(chains * count))


def ess(chains: Tensor, kind: str = "bulk") -> Tensor:
    """Effective number of draws (chains, draws, ...): "bulk" of rank-normalised values, "mean" of the values, "tail".

    NaN as `r_hat` is.
    """
    if kind not in ("bulk", "mean", "tail"):
        raise ValueError(f'kind must be "bulk", "mean" or "tail", got {kind!r}')
    if chains.shape[1] < FEWEST:
        return _undefined(chains)
    split = split_chains(chains.double())
    if kind == "mean":
        found = _ess_of(split)
    elif kind == "bulk":
        found = _ess_of(rank_normalised(split))
    else:
        edges = [_quantile(chains.double().flatten(0, 1), q) for q in (0.05, 0.95)]
        found = torch.minimum(*[_ess_of((split <= e).double()) for e in edges])
    return _undefined_where_nan(found, chains)


def e_bfmi(energy: Tensor) -> Tensor:
    """How far one momentum takes a chain's energy, beside its whole spread (Betancourt, 2016); (chains, draws) -> (chains,)."""
    steps = energy.diff(dim=1).double()
    return (steps * steps).mean(1) / energy.double().var(1)


def e_bfmi_of_all_steps(noted: Mapping[str, Tensor]) -> Tensor:
    """E-BFMI of chains that were thinned, from what was noted of the steps between draws: that of the chains as they ran."""
    if "energy_jumps" not in noted:
        return e_bfmi(noted["energy"])
    jumps, mean, spread, count = (noted[f"energy_{name}"].double() for name in ("jumps", "mean", "spread", "count"))
    others = count.sum(1) - 1
    centre = (count * mean).sum(1, keepdim=True) / count.sum(1, keepdim=True)
    variance = (spread + count * (mean - centre) ** 2).sum(1) / others
    return jumps.sum(1) / others / variance


def predicted(chain: Any, x: Any) -> Tensor:
    """What each draw of a chain predicts at x, (draws, numbers): class probabilities, else the network's outputs."""
    outputs = chain.predict(x, num_samples=len(chain)).outputs
    labelled = isinstance(chain.model.likelihood, Categorical)
    return (outputs.softmax(2) if labelled else outputs).flatten(1)


def of_chains(chains: Sequence[Any], x: Any = None) -> Diagnostics:
    """Judge stored chains (`Samples`) of one run together; with inputs x by what they predict there.

    Hidden units can trade places without changing any prediction, so the weights of two good chains need not agree.
    """
    length = min(len(c) for c in chains)
    if length < 8:
        few = "1 draw a chain is" if length == 1 else f"{length} draws a chain are"
        return Diagnostics(messages=(f"{few} too few to judge; keep at least 8",), ok=False)
    stride = max(1, sum(draws[0].numel() for draws in chains[0].draws.values()) // MOST_SCALARS)
    # Fewer columns first, then a copy: draws may lie in a file that is larger than memory.
    quantities = {
        k: torch.stack([c.draws[k][:length].reshape(length, w[0].numel())[:, ::stride] for c in chains])
        for k, w in chains[0].draws.items()
        if w[0].numel()
    }
    told = _of_draws(quantities, _standing(_noted(chains, length)))
    if "log_joint" in chains[0].statistics:
        noted = [c.statistics["log_joint"][:length].reshape(length, 1) for c in chains]
        quantities["log_joint"] = torch.stack(noted)
    table = {k: _row(q) for k, q in quantities.items()}
    if x is not None:
        values = torch.stack([predicted(c, x)[:length] for c in chains])
        table["predictions"] = _row(values[..., :: max(1, values.shape[-1] // MOST_SCALARS)])
    return _verdict(chains, table, length, told)


def _row(chains: Tensor) -> dict[str, float]:
    """The worst of several numbers; one that never changes has nothing to mix."""
    moving = (chains != chains[:1, :1]).flatten(0, 1).any(0)
    if not bool(moving.any()):
        return {"r_hat": 1.0, **dict.fromkeys(("ess", "ess_tail"), float(chains.shape[0] * chains.shape[1]))}
    chains = chains[..., moving]
    worst = {"r_hat": float(r_hat(chains).max()), "ess": float(ess(chains).min())}
    return {**worst, "ess_tail": float(ess(chains, "tail").min())}


def _of_draws(quantities: Mapping[str, Tensor], told: Sequence[int]) -> list[str]:
    """What is wrong with draws whatever they are of: numbers that are none, and chains (but those `told` of) that never move."""
    messages = [
        f"some draws of {k} are not finite: take smaller steps"
        for k, q in quantities.items()
        if not bool(q.isfinite().all())
    ]
    moves = torch.stack([(q != q[:, :1]).flatten(1).any(1) for q in quantities.values()]).any(0)
    still = [m for m, moved in enumerate(moves.tolist()) if not moved and m not in told]
    if still:
        messages.append(f"{_named(still, len(moves))} never moved: take smaller steps, or start elsewhere")
    return messages


def _standing(noted: Mapping[str, Tensor]) -> list[int]:
    """The chains that hardly ever accepted."""
    if "acceptance" not in noted:
        return []
    return [m for m, share in enumerate(noted["acceptance"].double().mean(1).tolist()) if not share > LEAST_ACCEPTANCE]


def _named(which: Sequence[int], of: int) -> str:
    return "the chain" if of == 1 else f"chain {', '.join(map(str, which))} (of 0 to {of - 1})"


def _verdict(
    chains: Sequence[Any], table: dict[str, dict[str, float]], length: int, of_draws: Sequence[str]
) -> Diagnostics:
    # Where predictions are known, they and the log joint count: weights of good chains may differ.
    judged = {k: row for k, row in table.items() if "predictions" not in table or k in ("predictions", "log_joint")}
    worst = max(math.inf if math.isnan(row["r_hat"]) else row["r_hat"] for row in judged.values())
    fewest = min(row["ess"] for row in judged.values())
    where = " in function space" if "predictions" in table else ""
    chains_of = "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
    messages = [f"{chains_of} of {length} draws{where}: largest R-hat {worst:.3f}, smallest bulk ESS {fewest:.0f}"]
    messages.extend(of_draws)
    mixed = worst < 1.01 or len(chains) == 1 and worst < 1.05
    if not mixed:
        messages.append("the chains have not mixed (R-hat should be below 1.01): run longer, or warm up longer")
    if fewest < 100 * len(chains):
        messages.append(f"few independent draws ({fewest:.0f}, where 100 a chain are advised): run longer")
    told, fine = _of_statistics(chains, length)
    warmth = thermometers.readings(_noted(chains, length))
    said, warm = thermometers.judged(warmth)
    return Diagnostics(
        messages=(*messages, *told, *said), table={**table, **warmth}, ok=mixed and not of_draws and fine and warm
    )


def _noted(chains: Sequence[Any], length: int) -> dict[str, Tensor]:
    """What all chains noted of every draw, (C, K) each."""
    return {
        k: torch.stack([c.statistics[k][:length].reshape(length) for c in chains])
        for k in chains[0].statistics
        if all(k in c.statistics and c.statistics[k].numel() == len(c) for c in chains)
    }


def _of_statistics(chains: Sequence[Any], length: int) -> tuple[list[str], bool]:
    """What the samplers noted beside their draws, in words, and whether nothing of it speaks against them."""
    messages, ok = [], True
    noted = _noted(chains, length)
    if "divergent" in noted and bool(noted["divergent"].any()):
        ok = False
        count = int(noted["divergent"].sum())
        messages.append(f"{count} transitions diverged: use a smaller step_size or a higher target_acceptance")
    if "acceptance" in noted:
        messages.append(f"mean acceptance {float(noted['acceptance'].double().mean()):.2f}")
        stuck = _standing(noted)
        if stuck:
            ok = False
            messages.append(f"{_named(stuck, len(chains))} hardly ever accepted: use a smaller step_size")
    if "energy" in noted:
        least = float(e_bfmi_of_all_steps(noted).min())
        if not least > LEAST_E_BFMI:
            ok = False
            messages.append(
                "E-BFMI cannot be told, since energies are all alike or not finite: use a smaller step_size"
                if math.isnan(least)
                else f"E-BFMI is {least:.2f}, below {LEAST_E_BFMI}: the chain changes its energy too slowly to reach the tails; "
                "run longer, or write the model with non-centred scales"
            )
    if "log_joint" in noted and not bool(noted["log_joint"].isfinite().all()):
        ok = False
        messages.append("some draws have no finite log joint: the chain left where the model is defined")
    return messages, ok
