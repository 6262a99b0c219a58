"""Fields that hold a belief instead of a number: finding them, filling them in, writing them down.

``Normal(scale=HalfCauchy())`` has one unknown, ``scale``. The model keeps its value among the parameters and *binds*
it, so that a prior or likelihood only ever computes with numbers and tensors. Works on any object: a dataclass by its
fields, anything else by its attributes.
"""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plausible.core import hyperpriors
from plausible.core.errors import require_positive
from plausible.core.hyperpriors import Hyperprior
from plausible.weights.twin import twin

# A description is JSON in a file's header; tensors past this size belong among the file's tensors.
LARGEST_DESCRIBED_TENSOR = 10_000

_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
_DTYPES |= {str(d).removeprefix("torch."): d for d in (torch.int64, torch.int32, torch.bool)}


def unknowns(thing: object) -> dict[str, Hyperprior]:
    """The fields of ``thing`` that hold a hyperprior, by name.

    A nested dataclass (the prior inside ``fan_in(prior)``) lends its unknowns under their own names.
    """
    found: dict[str, Hyperprior] = {}
    for name, value in _fields(thing).items():
        inner = {name: value} if isinstance(value, Hyperprior) else unknowns(value) if _is_nested(value) else {}
        for inner_name, hyperprior in inner.items():
            if inner_name in found:
                raise ValueError(f"{type(thing).__name__} has two unknowns called {inner_name!r}; give one a number")
            found[inner_name] = hyperprior
    return found


def bind(thing: Any, values: Mapping[str, Tensor]) -> Any:
    """A shallow copy of ``thing`` with its unknowns replaced by the tensors in ``values``.

    Nothing is validated: the tensors may be traced or carry a ``vmap`` axis. They must broadcast against whatever
    ``thing`` is applied to.
    """
    if not values:
        return thing
    present = unknowns(thing)
    for name in values:
        if name not in present:
            raise ValueError(f"{type(thing).__name__} has no unknown {name!r}; it has {_listed(present)}")
    bound = twin(thing)
    for name, value in _fields(thing).items():
        if isinstance(value, Hyperprior) and name in values:
            object.__setattr__(bound, name, values[name])  # frozen dataclasses refuse plain assignment
        elif _is_nested(value):
            inner = {key: values[key] for key in unknowns(value) if key in values}
            object.__setattr__(bound, name, bind(value, inner))
    return bound


def known(thing: object, name: str) -> Any:
    """The number or tensor in a field; an error that says what to do while the field is still unknown."""
    value = getattr(thing, name)
    if isinstance(value, Hyperprior):
        raise ValueError(
            f"{name} of {type(thing).__name__} is unknown, {value}; use it in a BayesianModel, which supplies the "
            f"value, or give a number"
        )
    return value


def require_scale(name: str, value: object) -> None:
    """Check a field that may be unknown. Tensors pass unread: they may be on a device or carry a ``vmap`` axis."""
    if isinstance(value, Tensor | Hyperprior):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a positive number, a tensor or a hyperprior, got {value!r}")
    require_positive(name, value)


def spec(thing: object) -> dict[str, Any]:
    """A JSON-able description, ``{"name": class name, "fields": {...}}``; ``unspec`` rebuilds the object.

    Tensors come back on the CPU and lists as tuples.
    """
    return {"name": type(thing).__name__, "fields": {name: _encoded(v, name) for name, v in _fields(thing).items()}}


def unspec(description: Mapping[str, Any], registry: Mapping[str, type]) -> Any:
    """Rebuild what ``spec`` described, through the constructor and its checks.

    Only classes in ``registry`` and the hyperpriors can be made: a description comes from a file, and a file must not
    be able to name code.
    """
    return _decoded(description, {**hyperpriors.registry, **registry})


def _fields(thing: object) -> dict[str, Any]:
    if dataclasses.is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.init}
    return dict(vars(thing))


def _is_nested(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Hyperprior)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"


def _encoded(value: Any, name: str) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Tensor):
        if value.numel() > LARGEST_DESCRIBED_TENSOR:
            raise ValueError(
                f"{name} has {value.numel()} entries, more than the {LARGEST_DESCRIBED_TENSOR} a description may hold; "
                f"use a number or a smaller tensor that broadcasts"
            )
        return {"tensor": value.detach().cpu().tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, tuple | list):
        return [_encoded(entry, name) for entry in value]
    if isinstance(value, type):
        return {"class": value.__name__}
    if dataclasses.is_dataclass(value):
        return spec(value)
    raise TypeError(f"{name} holds a {type(value).__name__}, which has no description; use numbers, tensors or priors")


def _decoded(value: Any, registry: Mapping[str, type]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_decoded(entry, registry) for entry in value)
    if not isinstance(value, Mapping):
        return value
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=_looked_up(value["dtype"], _DTYPES))
    if "class" in value:
        return _looked_up(value["class"], registry)
    fields = {name: _decoded(entry, registry) for name, entry in value["fields"].items()}
    return _looked_up(value["name"], registry)(**fields)


def _looked_up(name: str, registry: Mapping[str, Any]) -> Any:
    if name not in registry:
        raise ValueError(f"unknown name {name!r} in a description; known are {_listed(registry)}")
    return registry[name]
