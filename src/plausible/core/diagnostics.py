"""Whether chains agree, and how many independent draws they are worth (Vehtari et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MOST_SCALARS = 2000  # of a network's weights, evenly spread: enough to see a chain that does not mix


@dataclass(frozen=True)
class Diagnostics:
    """`ok` if nothing speaks against the posterior; `messages` in plain words; `table` by quantity."""

    messages: tuple[str, ...]
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ok: bool = True


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
    place = q * (flat.shape[0] - 1)
    low = int(place)
    lower = flat.kthvalue(low + 1, dim=0).values
    upper = flat.kthvalue(min(low + 2, flat.shape[0]), dim=0).values
    return lower + (place - low) * (upper - lower)


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
    """Rank-normalised split R-hat of draws (chains, draws, ...): the larger of the bulk's and the tails'."""
    split = split_chains(chains.double())
    folded = (split - _quantile(split.flatten(0, 1), 0.5)).abs()
    return torch.maximum(_between_within(rank_normalised(split)), _between_within(rank_normalised(folded)))


def _autocovariance(chains: Tensor) -> Tensor:
    count = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    padded = torch.fft.rfft(centred, n=2 * count, dim=1)
    return torch.fft.irfft(padded * padded.conj(), n=2 * count, dim=1)[:, :count] / count


def _ess_of(split: Tensor) -> Tensor:
    """Geyer's initial monotone sequence on the combined autocorrelation of (chains, draws, ...)."""
    chains, count = split.shape[:2]
    covariance = _autocovariance(split)
    within = (covariance[:, 0] * count / (count - 1)).mean(0)
    total = within * (count - 1) / count
    if chains > 1:
        total = total + split.mean(1).var(0)
    correlation = 1 - (within - covariance.mean(0) * count / (count - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: count - count % 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).to(pairs.dtype).cumprod(0)
    monotone = pairs.cummin(0).values * positive
    time = (-1 + 2 * monotone.sum(0)).clamp(min=1 / torch.log10(torch.tensor(float(chains * count))))
    return chains * count / time


def ess(chains: Tensor, kind: str = "bulk") -> Tensor:
    """Effective number of draws (chains, draws, ...): "bulk" of rank-normalised values, "mean" of the values, "tail"."""
    split = split_chains(chains.double())
    if kind == "mean":
        return _ess_of(split)
    if kind == "bulk":
        return _ess_of(rank_normalised(split))
    if kind == "tail":
        flat = split.flatten(0, 1)
        edges = [_quantile(flat, q) for q in (0.05, 0.95)]
        return torch.minimum(*[_ess_of((split <= e).double()) for e in edges])
    raise ValueError(f'kind must be "bulk", "mean" or "tail", got {kind!r}')


def of_chains(chains: Sequence[Any]) -> Diagnostics:
    """Judge stored chains (`Samples`) of one run together."""
    length = min(len(c) for c in chains)
    if length < 8:
        return Diagnostics(messages=(f"{length} draws a chain are too few to judge; keep at least 8",), ok=False)
    table: dict[str, dict[str, float]] = {}
    quantities = {k: torch.stack([c.draws[k][:length].reshape(length, -1) for c in chains]) for k in chains[0].draws}
    if "log_joint" in chains[0].statistics:
        noted = [c.statistics["log_joint"][:length].reshape(length, 1) for c in chains]
        quantities["log_joint"] = torch.stack(noted)
    stride = max(1, sum(q.shape[-1] for q in quantities.values()) // MOST_SCALARS)
    for k, q in quantities.items():
        q = q[..., ::stride]
        table[k] = {"r_hat": float(r_hat(q).max()), "ess": float(ess(q).min()), "ess_tail": float(ess(q, "tail").min())}
    return _verdict(chains, table, length)


def _verdict(chains: Sequence[Any], table: dict[str, dict[str, float]], length: int) -> Diagnostics:
    worst = max(row["r_hat"] for row in table.values())
    fewest = min(row["ess"] for row in table.values())
    chains_of = "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
    messages = [f"{chains_of} of {length} draws: largest R-hat {worst:.3f}, smallest bulk ESS {fewest:.0f}"]
    ok = worst < 1.01 or len(chains) == 1 and worst < 1.05
    if not ok:
        messages.append("the chains have not mixed (R-hat should be below 1.01): run longer, or warm up longer")
    if fewest < 100 * len(chains):
        messages.append(f"few independent draws ({fewest:.0f}, where 100 a chain are advised): run longer")
    for k, v in (
        (k, torch.cat([c.statistics[k] for c in chains]))
        for k in ("divergent", "acceptance")
        if k in chains[0].statistics
    ):
        if k == "divergent" and bool(v.any()):
            ok = False
            messages.append(
                f"{int(v.sum())} transitions diverged: use a smaller step_size or a higher target_acceptance"
            )
        if k == "acceptance":
            messages.append(f"mean acceptance {float(v.mean()):.2f}")
    return Diagnostics(messages=tuple(messages), table=table, ok=ok)
