"""How an example's gradient follows from an operation's input and the gradient of its output.

One file per kind of operation. `find` looks an operation up; what it does not know falls back to exact per-example
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import convolution, elementwise, embedding, linear, norms

READERS: dict[Any, Callable[..., Any]] = {
    **linear.READERS,
    **convolution.READERS,
    **norms.READERS,
    **embedding.READERS,
    **elementwise.READERS,
}


def find(func: Any, args: tuple, kwargs: Mapping[str, Any], is_weight: Callable[[Any], bool]) -> Any:
    """(rule, input, weight, bias, function that runs the operation), or None."""
    reader = READERS.get(func)
    return None if reader is None else reader(func, args, dict(kwargs), is_weight)
