"""Batch, instance, layer, group and RMS norms: a normalised input times a weight plus a bias, one each per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layouts import Layout
from .rule import Rule, for_columns


@dataclass(frozen=True)
class Norm(Rule):
    """y = z w + b. The affine axes are the last `trailing` ones, or axis 1 where `trailing` is 0."""

    trailing: int

    def weight_gradients(self, given: Tensor, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Σ over positions of slope × normalised input."""
        return self._summed(_wide(slope) * given, layout, examples)

    def bias_gradients(self, given: Any, slope: Tensor, layout: Layout, examples: int) -> Tensor:
        """Σ over positions of the slope."""
        return self._summed(_wide(slope), layout, examples)

    def _summed(self, values: Tensor, layout: Layout, examples: int) -> Tensor:
        def one(column: Tensor) -> Tensor:
            split = layout.split(column, examples)  # (N, T, rest...)
            kept = (2,) if self.trailing == 0 else tuple(range(split.dim() - self.trailing, split.dim()))
            axes = [a for a in range(1, split.dim()) if a not in kept]
            return split.sum(axes)

        return for_columns(one, values)

    def suits(self, layout: Layout) -> bool:
        """Where the channels are axis 1, examples are first."""
        return self.trailing > 0 or layout.axis == 0


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _affine(rule: Norm, plain: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
    def run() -> Tensor:
        shape = (1, -1, *[1] * (plain.dim() - 2)) if rule.trailing == 0 else None
        own = [None if t is None else t.reshape(shape) if shape else t for t in (weight, bias)]
        out = plain if own[0] is None else plain * own[0]
        return out if own[1] is None else out + own[1]

    return rule, plain, weight, bias, run


def _layer_norm(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    shape = tuple(given["normalized_shape"])
    plain = func(given["input"], shape, None, None, given.get("eps", 1e-5))
    return _affine(Norm(len(shape)), plain, given.get("weight"), given.get("bias"))


def _rms_norm(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    shape = tuple(given["normalized_shape"])
    return _affine(Norm(len(shape)), func(given["input"], shape, None, given.get("eps")), given.get("weight"), None)


def _group_norm(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    plain = func(given["input"], given["num_groups"], None, None, given.get("eps", 1e-5))
    return _affine(Norm(0), plain, given.get("weight"), given.get("bias"))


def _batch_norm(func: Any, args: tuple, kwargs: dict[str, Any], is_weight: Any) -> Any:
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    weight, bias = given["weight"], given["bias"]
    rest = [given[k] for k in names[3:]]
    return _affine(Norm(0), func(given["input"], None, None, *rest), weight, bias)


READERS = {
    torch.layer_norm: _layer_norm,
    torch.rms_norm: _rms_norm,
    torch.group_norm: _group_norm,
    torch.batch_norm: _batch_norm,
    torch.instance_norm: _batch_norm,  # its arguments come in the same order
}
