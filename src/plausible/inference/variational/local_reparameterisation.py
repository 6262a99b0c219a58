"""Local reparameterisation (Kingma, Salimans & Welling, 2015): draw a layer's outputs instead of its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ...weights.layer_calls import LayerCall
from ...weights.rng import Keys


def local_noise(call: LayerCall, scale: Tensor, bias_scale: Tensor | None, rng: Keys) -> Tensor:
    """What weights drawn from N(μ, σ²) add to x μᵀ + μ_b: √(x² σ²ᵀ + σ_b²) ε, with an ε of its own for every example.

    For each example alone it has the law of x (w − μ)ᵀ, and no two examples share it, so the gradient of a batch varies as if
    each example had drawn its own weights. Every row of x must be an example: two positions of one share their weights, and
    drawing their outputs apart would give the bound of another model.

    Args:
        call: A linear map of a matrix x.
        scale: σ.
        bias_scale: σ_b, None where the bias is not drawn here.
        rng: Where ε comes from.
    """
    assert call.input is not None
    with torch.autocast(
        call.input.device.type, enabled=False
    ):  # half precision has no room for squares of small scales
        x = call.input.to(scale.dtype)
        variance = call.run(input=x * x, weight=scale**2, bias=None if bias_scale is None else bias_scale**2)
        # The root has no slope at zero, which is what inputs that are all zero give.
        return torch.sqrt(variance + torch.finfo(variance.dtype).tiny) * rng.normal_like(variance)
