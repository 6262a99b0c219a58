"""Shallow copies that a compiler can read."""

import copy
from typing import TypeVar

T = TypeVar("T")


def twin(thing: T) -> T:
    """Like `copy.copy`, which the compiler of torch 2.11 refuses to look into."""
    if not hasattr(thing, "__dict__"):
        return copy.copy(thing)
    new = object.__new__(type(thing))
    for name, value in thing.__dict__.items():
        object.__setattr__(new, name, value)  # frozen dataclasses refuse plain assignment
    return new
