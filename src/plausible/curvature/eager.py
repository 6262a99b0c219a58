"""How the engine is entered."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def without_advice() -> Iterator[None]:
    """Where a kernel has no batching rule `vmap` loops over it, and warns, although the result is right."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield


def eagerly(function: Callable[P, R]) -> Callable[P, R]:
    """Run as it is also where the caller is compiled, and without torch's advice on speed.

    Recording goes by the identity of tensors, of which a compiler knows nothing; what is around it compiles.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_advice():
            return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # not before, since `disable` imports the compiler
            return torch.compiler.disable(quiet)(*args, **kwargs)
        return quiet(*args, **kwargs)

    return call
