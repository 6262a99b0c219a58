"""All data for a method that sees them at once: as one batch, or in chunks where one pass would take too much memory.

How large a chunk is follows from shapes alone, so that a resumed run sums in the order in which it began.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..weights.rng import forked
from . import batch as batches
from .chunks import HeldChunks, ReadChunks, parts
from .data import Resident
from .errors import NotSupported
from .footprint import Footprint
from .loaded import Loaded
from .many import Stacked
from .model import BayesianModel
from .source import Source
from .target import Target

PASS_BUDGET = 2 * 1024**3  # bytes that one pass and its way back may take, weights apart
HELD_BUDGET = 8 * 1024**3  # bytes of a loader's data that are read once and held; beyond it every pass reads them again
KEPT = (
    3  # times the tensors of a pass: themselves, the slopes that come back through them, and what both need meanwhile
)
OF_LIKELIHOOD = 8  # tensors as large as the outputs


def whole_data(source: Source, model: Target, device: torch.device, together: int) -> Any:
    """All data as one batch, or as `Chunks`.

    Args:
        source: Where the data come from.
        model: What runs on them.
        device: Where it runs.
        together: How many modes run at a time.
    """
    if not isinstance(model, BayesianModel):
        return source.full()
    one = source.parts[0] if isinstance(source, Stacked) else source
    held, made = _bytes_per_example(model, one, device)
    assert isinstance(one, Resident | Loaded)
    examples = one.size if isinstance(one, Resident) else one.examples
    limit = max(1, PASS_BUDGET // max(1, made * together))
    if examples <= limit:
        return source.full()
    size = math.ceil(examples / math.ceil(examples / limit))  # all chunks about alike
    if isinstance(one, Loaded) and held * examples > HELD_BUDGET:
        if isinstance(source, Stacked):
            raise NotSupported("data sets that are too large to be held cannot be run side by side; call fit for each")
        return ReadChunks(source.sweep, size)
    if isinstance(source, Stacked):
        return HeldChunks(parts(source.full(), size, axis=1), device)
    if isinstance(one, Loaded):
        whole = source.full(torch.device("cpu"))
        return HeldChunks(parts(batches.place(whole, device) if batches.fits(device, whole) else whole, size), device)
    return HeldChunks(parts(source.full(one.home), size), device)  # type: ignore[attr-defined]


def chunking(everything: Any) -> int | None:
    """How the data were cut, for a checkpoint: a run that cuts them otherwise has other bits."""
    if isinstance(everything, HeldChunks):
        return len(everything.batches)
    return everything.size if isinstance(everything, ReadChunks) else None


def _bytes_per_example(model: BayesianModel, source: Source, device: torch.device) -> tuple[int, int]:
    """What one more example takes: of the data, and of a pass and its way back."""
    block = next(iter(source.some_inputs(2)))
    params = {k: v.to(device) for k, v in model.start.items()}
    total, outputs = [], 0
    for count in (2, 3):  # a network may squeeze the axis of a lone example
        few = batches.place(batches.rows(block, torch.arange(count) % batches.length(block)), device)
        with torch.no_grad(), forked(0x6368756E6B, devices=[device]), Footprint() as footprint:
            out = model.bound(training=False).outputs(params, few)
        total.append(footprint.total)
        outputs = out.numel() // count * out.element_size()
    held = sum(t[:1].numel() * t.element_size() for t in pytree.tree_leaves(block))
    return held, held + KEPT * (total[1] - total[0]) + OF_LIKELIHOOD * outputs
