"""Compiling one function per run."""

from __future__ import annotations

import types
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

_numbers = count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for fixed shapes.

    The compiler counts recompilations per code object and gives up after a few, and every run compiles the same lines
    for another model. So each gets a code object of its own.
    """

    def call(*args: Any) -> Any:
        return function(*args)

    code = call.__code__.replace(co_name=f"run_{next(_numbers)}")
    return torch.compile(
        types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__), dynamic=False
    )
