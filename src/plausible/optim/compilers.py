"""How hooks stay out of `torch.compile`: it must trace neither them nor a pass that they record, use by use."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch


def untraced(function: Callable) -> Callable:
    """Mark a function as one that is called as it is, also from a compiled one."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "it looks at a pass of the network"  # type: ignore[attr-defined]
    return function


def skip(*functions: Any) -> None:
    """Have what was marked not even looked at where it is called from uncompiled code. torch.optim has loaded dynamo by now."""
    from torch._dynamo.eval_frame import skip_code

    for function in (*functions, pause, resume):
        assert isinstance(function, FunctionType)
        skip_code(function.__code__)


def pause() -> Any:
    """Run everything as it is written from here, until `resume` gets what this returned."""
    return torch._C._dynamo.eval_frame.set_eval_frame(None)  # type: ignore[attr-defined]


def resume(before: Any) -> None:
    """Let the compiler have what it had."""
    torch._C._dynamo.eval_frame.set_eval_frame(before)  # type: ignore[attr-defined]
