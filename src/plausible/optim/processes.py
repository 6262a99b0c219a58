"""Several processes, each with its part of the batch and a replica of the network, as DistributedDataParallel has them.

That averages the gradients over the processes, and what was measured of single examples is brought together here, once in
a step: all replicas draw the same numbers, so that they then make the same update, to the last bit. It is done whenever
torch's default group has more than one process. An optimiser sees neither a wrapper around its network nor why there is a
group, so processes that train networks of their own must not be in one.

What is in the ledger afterwards is, like the gradients, per process: means over the processes of numbers of examples, of
products with gradients, and of sums of squares where the loss is a sum. Where it is a mean, squares are weighed by each
process's number of examples, so that they are the mean over all of them, whatever the parts' sizes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ..inference.natural_gradient.kronecker_preconditioner import JOINED
from .ledger import Sums

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

Entry = tuple[str, str, tuple[int, ...], torch.dtype]  # what was measured of which weight, and its shape and type
OF_EXAMPLES = ("squares", "rows", "diagonal")  # of a mean loss these are averages over the process's own examples


def several() -> bool:
    """Whether there are other processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def bring_together(optimizer: BayesianOptimizer) -> None:
    """Make what was measured since the last step the same in all processes."""
    if not several() or not (optimizer.measures or optimizer.remembers or optimizer.reduction == "sum"):
        return
    done, weights = optimizer.ledger.done, optimizer.weights()
    own = _entries(done)
    examples, alike = _exchanged(done.examples, own, next(iter(weights.values())).device)
    entries = own if alike else _all_entries(own)
    total, size = sum(examples), dist.get_world_size()
    share = done.examples / total if total and optimizer.reduction == "mean" else 1.0 / size
    tensors = {e: _tensor(done, weights, e) * (share if e[0] in OF_EXAMPLES else 1.0 / size) for e in entries}
    _add_up(tensors)
    done.tensors = {}
    for (what, name, _, _), value in tensors.items():
        done.tensors.setdefault(what, {})[name] = value
    done.examples = total / size


def _entries(done: Sums) -> list[Entry]:
    """In the same order everywhere."""
    found = [(what, k, tuple(t.shape), t.dtype) for what, own in done.tensors.items() for k, t in own.items()]
    return sorted(found, key=lambda e: e[:2])


def _exchanged(examples: float, own: Sequence[Entry], device: torch.device) -> tuple[list[int], bool]:
    """The number of examples of every process, and whether all have measured the same."""
    table = torch.zeros(dist.get_world_size(), 2, dtype=torch.int64, device=device)
    told = torch.tensor([int(examples), zlib.crc32(repr(own).encode())], device=device)
    table[dist.get_rank()] = told
    dist.all_reduce(table)
    rows = table.tolist()
    return [row[0] for row in rows], len({row[1] for row in rows}) == 1


def _all_entries(own: Sequence[Entry]) -> list[Entry]:
    """What any process has measured: a network may use a weight for one part of the batch alone."""
    everyone: list[list[Entry]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, list(own))
    found = sorted({e for entries in everyone for e in entries}, key=lambda e: (*e[:2], repr(e)))
    twice = [a[1] for a, b in zip(found, found[1:], strict=False) if a[:2] == b[:2]]
    if twice:
        raise RuntimeError(
            f"{', '.join(twice)}: two processes measured this weight in two forms, so the network is not the same in them; "
            "make replicas of one network, in one precision"
        )
    return found


def _tensor(done: Sums, weights: Mapping[str, Tensor], entry: Entry) -> Tensor:
    """What this process measured, zeros if nothing."""
    what, name, shape, dtype = entry
    found = done.tensors.get(what, {}).get(name)
    if found is None:
        found = torch.zeros(shape, dtype=dtype, device=weights[name.partition(JOINED)[0]].device)
    return found


def _add_up(tensors: dict[Entry, Tensor]) -> None:
    """Over the processes, in one message for each type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Entry]] = {}
    for entry, t in tensors.items():
        kinds.setdefault((t.dtype, t.device), []).append(entry)
    for entries in kinds.values():
        flat = torch.cat([tensors[e].reshape(-1) for e in entries])
        dist.all_reduce(flat)
        parts = flat.split([tensors[e].numel() for e in entries])
        tensors.update({e: part.view(e[2]) for e, part in zip(entries, parts, strict=True)})
