"""Compiling one function per run."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    return torch.compile(_own_code(call), dynamic=False)


def compiled_move(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for what is called thousands of times a second, each time with tensors of the same shapes.

    To look whether anything has changed that the code was made for takes longer than a small network's gradient. In one
    run nothing does, so nobody looks. That asks for one whole graph: pieces around a break would be kept with code that
    other runs share, and mistaken for theirs.
    """

    def call(*args: Any) -> Any:
        return function(*args)

    from .rewrites import (
        Rewrites,
        after_fusion,
        before_fusion,
    )  # which imports the compiler: seconds that an eager run does without

    options: dict[str, Any] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
        "post_grad_custom_pre_pass": Rewrites(before_fusion),
        "post_grad_custom_post_pass": Rewrites(after_fusion),
        "cpp_wrapper": True,  # calls its kernels from C++: for a small network Python's calls take longer than they do
    }
    contraction = "cpp.enable_floating_point_contract_flag"
    if isinstance(torch._inductor.config.get_config_copy().get(contraction), str):  # a yes or no in older versions
        options[contraction] = "fast"  # a · b + c in one instruction
    return torch.compile(_own_code(call), dynamic=False, fullgraph=True, options=options)


@contextmanager
def held_to(threads: int) -> Iterator[None]:
    """Compile or run with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _own_code(call: Callable[..., Any]) -> Callable[..., Any]:
    assert isinstance(call, types.FunctionType)
    code = call.__code__.replace(co_name=f"run_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
