"""Flipout (Wen et al., 2018): one perturbation of the weights, with signs of its own for every example."""

from __future__ import annotations

from torch import Tensor

from ...weights.layer_calls import LayerCall
from ...weights.rng import Keys


def flipped_noise(call: LayerCall, shift: Tensor, bias_shift: Tensor | None, rng: Keys) -> Tensor:
    """What the perturbation ΔW ∘ r sᵀ adds to a layer's outputs: r ∘ ΔW(s ∘ x), with random signs for every example.

    Where the entries of ΔW are independent and symmetric, ΔW ∘ r sᵀ has its law, and two examples' are uncorrelated. All
    positions of an example share its signs, as they share its weights.

    Args:
        call: A linear map or a convolution of examples along the first axis.
        shift: ΔW.
        bias_shift: The bias's own perturbation, None where it is not drawn here.
        rng: Where the signs come from.
    """
    x, channels = call.input, 1 if call.kind == "convolution" else -1
    assert x is not None
    out = call.run(input=x * _signs(x, channels, rng), weight=shift, bias=bias_shift)
    return out * _signs(out, channels, rng)


def _signs(like: Tensor, channels: int, rng: Keys) -> Tensor:
    """±1 by example and channel, the same at all positions."""
    kept = (0, channels % like.dim())
    shape = [length if axis in kept else 1 for axis, length in enumerate(like.shape)]
    return rng.bernoulli(shape, 0.5).to(like.dtype) * 2 - 1
