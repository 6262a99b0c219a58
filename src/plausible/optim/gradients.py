"""Which tensors in `.grad` a backward pass left there, and which of them came from outside of a draw.

A gradient is known by its tensor's identity and version: whether it was cleared, by whomever, can then be told without a look
at its values, for which a GPU would have to be waited for; unless something was written into it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Stamp = tuple[int, int]


def _stamp(weight: Tensor) -> Stamp | None:
    return None if weight.grad is None else (id(weight.grad), weight.grad._version)


def _is_zero(gradient: Tensor | None) -> bool:
    with torch.no_grad():
        return gradient is None or (not gradient.is_sparse and not bool(gradient.any()))


def snapshot(weights: Iterable[Tensor]) -> list[tuple[Tensor | None, int]]:
    """The gradients as they are. It holds on to them, so it is for as long as a closure runs."""
    return [(p.grad, -1 if p.grad is None else p.grad._version) for p in weights]


def unchanged(weights: Iterable[Tensor], before: Iterable[tuple[Tensor | None, int]]) -> bool:
    """Whether no gradient came, went or was written into since `snapshot`."""
    return all(
        p.grad is gradient and (gradient is None or gradient._version == version)
        for p, (gradient, version) in zip(weights, before, strict=True)
    )


@dataclass
class Gradients:
    """What is known of the gradients in `.grad`, by weight.

    Attributes:
        left: As the last backward pass or draw left them.
        outside: Those that have a part from outside of a draw, of an optimiser whose gradients are taken at draws.
    """

    left: dict[str, Stamp] = field(default_factory=dict)
    outside: dict[str, Stamp] = field(default_factory=dict)

    def clear(self) -> None:
        """They were cleared, or a step was made of them."""
        self.left, self.outside = {}, {}

    def came(self, name: str, weight: Tensor, astray: bool) -> None:
        """A backward pass has added to the gradient of `weight`; `astray`: outside of a draw."""
        now = _stamp(weight)
        if now is None:
            return
        self.left[name] = now
        if astray:
            self.outside[name] = now
        elif name in self.outside:
            tensor, version = self.outside.pop(name)
            if now == (tensor, version + 1):  # added to what was there; else that was cleared first
                self.outside[name] = now

    def close_draw(self, weights: Mapping[str, Tensor]) -> None:
        """Remember them as the end of a draw leaves them."""
        self.left = {k: s for k, p in weights.items() if (s := _stamp(p)) is not None}

    def were_cleared(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether those that were left are gone, or zero."""
        if all(p.grad is None for p in weights.values()):
            return True
        if not self.left or any(_stamp(weights[k]) == s for k, s in self.left.items()):
            return False
        return all(_is_zero(p.grad) for p in weights.values())

    def names_outside(self, weights: Mapping[str, Tensor]) -> list[str]:
        """The weights that still have a gradient from outside of a draw."""
        for k, (tensor, version) in list(self.outside.items()):
            now = _stamp(weights[k])
            if now is None or now[0] != tensor or (now[1] != version and _is_zero(weights[k].grad)):
                del self.outside[k]
            else:
                self.outside[k] = now  # written into, as a scaler or an average over processes does
        return [k for k in weights if k in self.outside]

    def require_none_outside(self, weights: Mapping[str, Tensor]) -> None:
        """Raise where a gradient from outside of a draw would be mixed with those of draws."""
        names = self.names_outside(weights)
        if not names:
            return
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RuntimeError(
            f"{names[0]}{more}: a gradient came from outside of a draw, and must not be mixed with those of one; run every "
            "backward of a step inside `with optimizer.sampled():`, or call optimizer.train() before a loop that "
            "accumulates gradients by itself (and .eval() after it), or clear them with optimizer.zero_grad()"
        )
