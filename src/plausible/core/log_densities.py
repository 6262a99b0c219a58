"""Log densities that priors and likelihoods share, as plain formulas.

Parameters may be Python numbers, whose constants are then computed once by ``math``, or tensors that broadcast. No
tensor is built from a number, so the formulas may be captured in a CUDA graph; every operation has a batching rule.
"""

import math

import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def log(value: float | Tensor) -> float | Tensor:
    """The logarithm of a number as a number, of a tensor as a tensor."""
    return torch.log(value) if isinstance(value, Tensor) else math.log(value)


def lgamma(value: float | Tensor) -> float | Tensor:
    """The logarithm of the gamma function, likewise."""
    return torch.lgamma(value) if isinstance(value, Tensor) else math.lgamma(value)


def log_normal(residual: Tensor, scale: float | Tensor) -> Tensor:
    """log N(residual; 0, scale²)."""
    z = residual / scale
    return -0.5 * z * z - (log(scale) + LOG_SQRT_2PI)


def log_student_t(residual: Tensor, df: float | Tensor, scale: float | Tensor) -> Tensor:
    """Log density of a Student t variable with ``df`` degrees of freedom, times ``scale``."""
    z = residual / scale
    constant = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * (log(df) + math.log(math.pi)) - log(scale)
    return constant - (df + 1) / 2 * torch.log1p(z * z / df)


def log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x), with a value and a slope that stay right far out in the left tail.

    ``torch.special.log_ndtr`` has no batching rule (``vmap`` would loop and warn) and loses its slope to cancellation
    in float32.
    """
    if x.dtype in (torch.bfloat16, torch.float16):  # erfcx has no half-precision kernel on a CPU
        return log_ndtr(x.float()).to(x.dtype)
    in_tail = x < -1
    # Each branch sees a harmless value where it is not used: 0 · inf in a backward pass is NaN.
    tail = x.masked_fill(~in_tail, -1)
    body = x.masked_fill(in_tail, -1)
    log_tail = torch.log(0.5 * torch.special.erfcx(tail * -math.sqrt(0.5))) - 0.5 * tail * tail
    log_body = torch.log1p(-0.5 * torch.erfc(body * math.sqrt(0.5)))
    return torch.where(in_tail, log_tail, log_body)


def log_ndtr_difference(lower: Tensor, upper: Tensor) -> Tensor:
    """log(Φ(upper) - Φ(lower)) for lower < upper, stable in both tails."""
    # In the right tail both Φ are 1 to rounding; Φ(b) - Φ(a) = Φ(-a) - Φ(-b) moves the question to the left tail.
    flip = lower > 0
    larger = log_ndtr(torch.where(flip, -lower, upper))
    smaller = log_ndtr(torch.where(flip, -upper, lower))
    return larger + _log1mexp(smaller - larger)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0 (Mächler, 2012)."""
    near_zero = x > -math.log(2)
    near = x.masked_fill(~near_zero, -1)
    far = x.masked_fill(near_zero, -1)
    return torch.where(near_zero, torch.log(-torch.expm1(near)), torch.log1p(-torch.exp(far)))
