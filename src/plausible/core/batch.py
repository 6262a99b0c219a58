"""What one batch of data may look like, and how it becomes (inputs, targets, weights)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Inputs = Any


def as_tensors(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Numpy arrays (also inside tuples and dictionaries) become tensors; tensors stay; the rest is an error.

    Numpy's floats are float64 by default rather than by intention, so they take the network's `dtype`.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.ndarray | np.generic):
            tensor = torch.as_tensor(np.ascontiguousarray(value))
            return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        if isinstance(value, int | float):
            return torch.as_tensor(value)
        raise TypeError(
            f"data must be tensors or numpy arrays, got {type(value).__name__}; convert it with torch.as_tensor"
        )

    if hasattr(data, "keys") and not isinstance(data, dict):  # e.g. Hugging Face's BatchEncoding
        data = {k: data[k] for k in data.keys()}  # noqa: SIM118
    return pytree.tree_map(convert, data)


def split(batch: Any, rule: Callable[[Any], Any] | None = None) -> tuple[Inputs, Any, Tensor | None]:
    """Read a batch as (inputs, targets, weights or None)."""
    if rule is not None:
        batch = rule(batch)
    elif isinstance(batch, Mapping) or hasattr(batch, "keys"):
        if "labels" not in batch:
            raise ValueError(
                f'a dictionary batch has its targets under "labels", got the keys {sorted(batch.keys())}; '
                "rename them or give BayesianModel(..., batch=function)"
            )
        batch = ({k: batch[k] for k in batch.keys() if k != "labels"}, batch["labels"])  # noqa: SIM118
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        kind = (
            f"{type(batch).__name__} of length {len(batch)}"
            if isinstance(batch, tuple | list)
            else type(batch).__name__
        )
        raise TypeError(
            f"a batch is (inputs, targets) or (inputs, targets, weights), got {kind}; "
            "give BayesianModel(..., batch=function) for anything else"
        )
    inputs, targets = batch[0], batch[1]
    if isinstance(inputs, list):
        inputs = tuple(inputs)
    return inputs, targets, batch[2] if len(batch) == 3 else None


def length(inputs: Inputs) -> int:
    """How many examples there are; all tensors must agree."""
    sizes = {tuple(t.shape[:1]) for t in pytree.tree_leaves(inputs)}
    if len(sizes) != 1 or () in sizes:
        shapes = [tuple(t.shape) for t in pytree.tree_leaves(inputs)]
        raise ValueError(f"all inputs must have one leading axis of one length, got shapes {shapes}")
    return sizes.pop()[0]


def rows(tree: Any, index: Any) -> Any:
    """The examples at `index` of every tensor."""
    return pytree.tree_map(lambda t: t[index], tree)


def place(tree: Any, device: torch.device | str) -> Any:
    """The same examples on a device."""
    return pytree.tree_map(lambda t: t.to(device, non_blocking=True), tree)


def fits(device: torch.device, data: Any) -> bool:
    """Whether data would fill no more than half of what a GPU has left."""
    if device.type != "cuda":
        return True
    needed = sum(t.numel() * t.element_size() for t in pytree.tree_leaves(data))
    return needed <= torch.cuda.mem_get_info(device)[0] // 2


def check_dtype(inputs: Inputs, dtype: torch.dtype) -> None:
    """Raise if floating-point inputs have another precision than the network."""
    for t in pytree.tree_leaves(inputs):
        if t.is_floating_point() and t.dtype != dtype:
            raise ValueError(
                f"inputs are {t.dtype} but the network's weights are {dtype}; convert one, as in x.to({dtype})"
            )


def one_for_each(weights: Any, size: int) -> Tensor:
    """Weights as a tensor of one number for every example; with one axis more, B examples would have B² products."""
    found = as_tensors(weights)
    if not isinstance(found, Tensor) or found.shape != (size,):
        shape = tuple(found.shape) if isinstance(found, Tensor) else f"of a {type(weights).__name__}"
        hint = "; did you mean weights.squeeze(-1)?" if shape == (size, 1) else ""
        raise ValueError(f"weights must be one number for each of the {size} examples, got shape {shape}{hint}")
    return found


def check_weights(weights: Tensor) -> None:
    """Raise if a weight is negative or no number."""
    wrong = ~((weights >= 0) & weights.isfinite())
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(
            f"weights must be {len(weights)} finite, non-negative numbers, got {weights[place].item()} in example {place}; "
            "give an example without a say the weight zero"
        )


def check_finite(tree: Any, what: str) -> None:
    """Raise if a floating-point tensor of the data holds NaN or infinity."""
    for path, t in pytree.tree_leaves_with_path(tree):
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            bad = (
                int((~torch.isfinite(t)).flatten(1).any(1).nonzero()[0])
                if t.dim() > 1
                else int((~torch.isfinite(t)).nonzero()[0])
            )
            value = t[bad].flatten()[~torch.isfinite(t[bad].flatten())][0].item()
            name = what + pytree.keystr(path)
            raise ValueError(f"{name} must be finite, got {value} in example {bad}; remove or impute it")


@contextmanager
def shapes_named(inputs: Inputs) -> Iterator[None]:
    """Turn a network's complaint about its inputs into one line that names their shapes."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(inputs))
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"the network cannot take these inputs, of shape {shapes}: {reason[0] if reason else type(error).__name__}; "
            "reshape them as its forward expects"
        ) from error
