"""Operations after which rows are no longer where the examples were, because the data say where they go.

Where the examples are inside a network is found out on a few of them. That holds for others as long as the same
operations do the same to all; one that picks or orders rows by their values (padding that is left out, tokens that are
sent to an expert, sentences sorted by length) does something else to every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Constant = Callable[[Any], bool]  # whether a tensor depends on no data

ALONG_AN_AXIS = {"index_select", "gather", "take_along_dim"}
INTO_AN_AXIS = {
    "index_copy", "index_add", "index_reduce", "scatter", "scatter_add", "scatter_reduce",
}  # fmt: skip
ALWAYS = {"_pack_padded_sequence"}


def rearranges(func: Any, args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """Whether an operation moves rows along their first axis by what is in the data."""
    name = getattr(func, "__name__", "").removesuffix("_") if callable(func) else ""
    reader = READERS.get(name if not name.startswith("__") else func.__name__)
    return reader is not None and bool(args) and reader(args, kwargs, constant)


def _picks(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """`x[index]`."""
    return not constant(args[0]) and _by_data(args[1], constant)


def _writes(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """`x[index] = values`: where the values are one number, no row goes anywhere."""
    index, values = args[1], args[2]
    return isinstance(values, Tensor) and values.dim() > 0 and not constant(values) and _by_data(index, constant)


def _puts(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """`x.index_put(indices, values)`."""
    values = args[2] if len(args) > 2 else kwargs.get("values")
    return _writes((args[0], tuple(args[1]), values), {}, constant)


def _by_data(index: Any, constant: Constant) -> bool:
    """Whether data say which entries of the first axis an index is of.

    `x[arange(n), last]` picks for every row from that row alone.
    """
    first, parts = True, index if isinstance(index, tuple) else (index,)
    tensors = [t for t in parts if isinstance(t, Tensor)]
    if any(t.dtype in (torch.bool, torch.uint8) and not constant(t) for t in tensors):
        return True
    if any(constant(t) and t.dim() > 0 for t in tensors):
        return False
    for part in parts:
        if isinstance(part, Tensor) and first:
            return not constant(part)
        first = first and part is None
    return False


def _along(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """Of rows at an index along an axis."""
    given = dict(zip(("dim", "index"), args[1:], strict=False)) | dict(kwargs)
    index = given.get("index", given.get("indices"))
    if isinstance(given.get("dim"), Tensor):  # take_along_dim has them the other way round
        index, given["dim"] = given["dim"], given.get("index", kwargs.get("dim"))
    return isinstance(index, Tensor) and not constant(index) and _is_first(given.get("dim"), args[0])


def _taken(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """`take` and the selection by a mask."""
    other = args[1] if len(args) > 1 else kwargs.get("mask", kwargs.get("index"))
    return isinstance(other, Tensor) and not constant(other) and not constant(args[0])


def _repeated(args: tuple, kwargs: Mapping[str, Any], constant: Constant) -> bool:
    """Each row as often as the data say."""
    repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    return isinstance(repeats, Tensor) and not constant(repeats) and _is_first(dim, args[0])


def _is_first(dim: Any, x: Any) -> bool:
    return dim is None or (isinstance(dim, int) and isinstance(x, Tensor) and dim % max(1, x.dim()) == 0)


READERS: Mapping[str, Callable[[tuple, Mapping[str, Any], Constant], bool]] = {
    "__getitem__": _picks,
    "__setitem__": _writes,
    "index_put": _puts,
    "masked_select": _taken,
    "masked_scatter": _taken,
    "take": _taken,
    "repeat_interleave": _repeated,
    **dict.fromkeys(ALONG_AN_AXIS | INTO_AN_AXIS, _along),
    **dict.fromkeys(ALWAYS, lambda args, kwargs, constant: True),
}
