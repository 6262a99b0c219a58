"""What a metric accepts: conversions, shapes, and errors that name the value and the way out."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

Array = Tensor | numpy.ndarray

# How far probabilities may be from summing to one: wide enough for rounding (and for float32 results kept as float64),
# narrow enough to catch logits, unnormalised scores and a forgotten division by the number of members.
SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}

Complaint = tuple[Tensor, Callable[[], str]]
"""A 0-d boolean, true when something is wrong, and the message to raise then."""


class LabelledProbabilities(NamedTuple):
    """Flat classification results: pixels are examples, ignored ones are gone."""

    probs: Tensor  # (examples, classes), at least float32
    labels: Tensor  # (examples,), int64
    dtype: torch.dtype  # of the answer


def as_tensors(values: Mapping[str, Array]) -> list[Tensor]:
    """Tensors on one device. NumPy arrays, which have none, follow the tensors; two devices are a mistake."""
    home = next((value.device for value in values.values() if isinstance(value, Tensor)), torch.device("cpu"))
    tensors = [_as_tensor(name, value, home) for name, value in values.items()]
    for name, tensor in zip(values, tensors, strict=True):
        if tensor.device != home:
            first = next(iter(values))
            raise ValueError(
                f"{first} and {name} must be on one device, got {home} and {tensor.device}; "
                f"did you mean {name}.to('{home}')?"
            )
    return tensors


def _as_tensor(name: str, value: Array, home: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, numpy.ndarray):
        raise TypeError(
            f"{name} must be a tensor or a NumPy array, got {type(value).__name__}; "
            f"did you mean torch.as_tensor({name})?"
        )
    if value.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {value.dtype}; did you mean {name}.astype(float)?")
    # A copy, because torch warns about read-only arrays and refuses negative strides and foreign byte orders.
    return torch.from_numpy(numpy.array(value, dtype=value.dtype.newbyteorder("="), order="C")).to(home)


def require_floating(name: str, tensor: Tensor) -> None:
    """Probabilities, scores and predictions are floating point; integers there are usually swapped arguments."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; did you mean {name}.float()?")


def require_some(name: str, tensor: Tensor) -> None:
    """No metric of nothing."""
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty, got shape {tuple(tensor.shape)}; pass at least one example")


def require_one_shape(tensors: Mapping[str, Tensor]) -> None:
    """Equal shapes, never broadcasting: (20, 1) against (20,) would silently score 400 pairs."""
    (first, expected), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != expected.shape:
            raise ValueError(
                f"{first} and {name} must have one shape, got {tuple(expected.shape)} and {tuple(tensor.shape)}"
                f"{_way_to(expected, name, tensor)}"
            )


def _way_to(expected: Tensor, name: str, tensor: Tensor) -> str:
    if tensor.shape == expected.shape[:-1] and expected.shape[-1:] == (1,):
        return f"; did you mean {name}.unsqueeze(-1)?"
    if tensor.shape[:-1] == expected.shape and tensor.shape[-1:] == (1,):
        return f"; did you mean {name}.squeeze(-1)?"
    return "; both need one entry per prediction"


def require_bins(bins: int) -> None:
    """A positive whole number of bins."""
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}; 15 is customary")


def refuse(*complaints: Complaint) -> None:
    """Raise the first complaint that holds. All of them travel from the device in one read-back."""
    found = torch.stack([wrong for wrong, _ in complaints]).tolist()
    for wrong, (_, message) in zip(found, complaints, strict=True):
        if wrong:
            raise ValueError(message())


def nan_complaint(name: str, tensor: Tensor) -> Complaint:
    """Infinite scores still have an order; NaN has none."""
    missing = tensor.detach().isnan()
    return (
        missing.any(),
        lambda: (
            f"{name} must not be NaN, got {int(missing.sum())} of {missing.numel()} values; "
            "find where they come from, or drop these examples"
        ),
    )


def infinity_complaint(name: str, tensor: Tensor) -> Complaint:
    """For quantities that are subtracted from each other, where two infinities make a NaN."""
    wrong = ~tensor.detach().isfinite()
    return (
        wrong.any(),
        lambda: (
            f"{name} must be finite, got {tensor[wrong][0].item()} ({int(wrong.sum())} of {wrong.numel()} values); "
            "find where it comes from, or drop these examples"
        ),
    )


def probability_complaints(name: str, probs: Tensor) -> list[Complaint]:
    """Probabilities lie in [0, 1] and sum to one over axis 1, up to rounding. A NaN fails the first of the two."""
    values = probs.detach()
    tolerance = SUM_TOLERANCE[probs.dtype]
    low, high = values.aminmax()
    totals = values.sum(1, dtype=torch.promote_types(probs.dtype, torch.float32)).flatten()
    off = (totals - 1).abs()

    def outside() -> str:
        value = low.item() if not low >= -tolerance else high.item()
        return f"{name} must lie in [0, 1], got {value:.6g}; if these are logits, did you mean {name}.softmax(1)?"

    def unnormalised() -> str:
        return (
            f"{name} must sum to one over axis 1, got a sum of {totals[off.argmax()].item():.6g}; "
            f"did you mean {name} / {name}.sum(1, keepdim=True)?"
        )

    return [
        (~((low >= -tolerance) & (high <= 1 + tolerance)), outside),
        (~(off.max() <= tolerance), unnormalised),
    ]


def require_class_axis(name: str, probs: Tensor) -> None:
    """Axis 1 holds the classes, as in `cross_entropy`."""
    require_floating(name, probs)
    if probs.ndim < 2:
        raise ValueError(
            f"{name} must be (N, C) or (N, C, H, W), got {tuple(probs.shape)}; "
            f"for two classes, did you mean torch.stack([1 - {name}, {name}], 1)?"
        )
    require_some(name, probs)


def class_rows(probs: Tensor) -> Tensor:
    """(N, C, ...) as (examples, C) in at least float32: a half-precision square or logarithm has no digits to lose."""
    return probs.movedim(1, -1).reshape(-1, probs.shape[1]).to(torch.promote_types(probs.dtype, torch.float32))


def labelled_probabilities(probs: Array, y: Array, ignore_index: int | None) -> LabelledProbabilities:
    """Check predicted probabilities and labels, flatten pixels, and drop the examples labelled `ignore_index`."""
    probs, y = as_tensors({"probs": probs, "y": y})
    require_class_axis("probs", probs)
    _require_labels(probs, y)
    rows, labels = class_rows(probs), y.reshape(-1).long()
    if ignore_index is not None:
        counted = labels != ignore_index
        rows, labels = rows[counted], labels[counted]
        if labels.numel() == 0:
            raise ValueError(f"y is empty: every label is ignore_index={ignore_index}; pass at least one other label")
    checked = rows.to(probs.dtype)  # the tolerance is that of the type the caller computed in
    refuse(*probability_complaints("probs", checked), _label_complaint(labels, probs.shape[1]))
    return LabelledProbabilities(rows, labels, probs.dtype)


def _require_labels(probs: Tensor, y: Tensor) -> None:
    if y.is_floating_point() or y.is_complex():
        raise TypeError(f"y must hold integer class labels, got {y.dtype}; did you mean y.long()?")
    expected = (probs.shape[0], *probs.shape[2:])
    if tuple(y.shape) == expected:
        return
    if y.shape == probs.shape:
        way_out = "did you mean y.argmax(1)?"
    elif tuple(y.shape) == (probs.shape[0], 1, *probs.shape[2:]):
        way_out = "did you mean y.squeeze(1)?"
    else:
        way_out = "one label per row of probs, class axis left out"
    raise ValueError(f"y must be {expected} for probs of {tuple(probs.shape)}, got {tuple(y.shape)}; {way_out}")


def _label_complaint(labels: Tensor, num_classes: int) -> Complaint:
    low, high = labels.aminmax()

    def out_of_range() -> str:
        label = int(low) if low < 0 else int(high)
        return f"y must hold labels from 0 to {num_classes - 1}, got {label}; did you mean ignore_index={label}?"

    return (low < 0) | (high >= num_classes), out_of_range
