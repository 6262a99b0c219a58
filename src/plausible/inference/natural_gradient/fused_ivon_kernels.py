"""The Triton kernels of `fused_ivon`; imported where there is a GPU only.

A launch is of as many tensors as a tuple of pointers has places, cut into tiles that are numbered through; a tile looks up
which tensor it is of. Products and sums round as the multi-tensor kernels of the plain path do, which fuse where they add a
multiple and nowhere else: so launch with `enable_fp_fusion=False`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(tile, firsts):
    """Which tensor a tile is of: the last one that begins at it or before."""
    place = tile * 0
    for i in tl.static_range(1, len(firsts)):
        place += (tile >= _number(firsts[i])).to(tl.int32)
    return place


@triton.jit
def _at(place, values):
    found = values[0]
    for i in tl.static_range(1, len(values)):
        found = tl.where(place == i, values[i], found)
    return found


@triton.jit
def _number(coded):
    """See `fused_ivon._coded`."""
    return ((coded >> 32) - 1).to(tl.int32)


@triton.jit
def _load(pointers, inside, other: tl.constexpr):
    """Without a mask where a tile is full: only then are four numbers read at a time."""
    if inside is None:
        numbers = tl.load(pointers)
    else:
        numbers = tl.load(pointers, mask=inside, other=other)
    return numbers


@triton.jit
def _deviation(metric, num_data):
    return tl.div_rn(1.0, tl.sqrt_rn(metric * num_data))


@triton.jit
def _write_rates(rates, step, rescale, multiple, rate, num_steps, final, log_momentum, COSINE: tl.constexpr):
    """What the mean's step is multiplied by, and what makes an average of the momentum, from the number of the step."""
    along = tl.load(step).to(tl.float64)
    if COSINE:
        share = final + (1.0 - final) * 0.5 * (1.0 + tl.cos(3.141592653589793 * (along / num_steps)))
    else:
        share = tl.load(multiple)
    tl.store(rates, -(rate * share * tl.load(rescale)).to(tl.float32))
    tl.store(rates + 1, (1.0 / (1.0 - tl.exp((along + 1.0) * log_momentum))).to(tl.float32))


@triton.jit(do_not_specialize=["base", "step"])
def displaced(
    means, curvatures, firsts, sizes, noises, base, noise, points, densities, offset, num_data, weight, constant,
    rates, step, rescale, multiple, rate: tl.float64, num_steps: tl.float64, final: tl.float64, log_momentum: tl.float64,
    COSINE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """w = μ + σ ε, a tile's share of the log prior, and (once) the rates of the step."""
    tile = base + tl.program_id(0)
    if tile == 0:
        _write_rates(rates, step, rescale, multiple, rate, num_steps, final, log_momentum, COSINE)
    place, within = _place(tile, firsts), tl.arange(0, BLOCK)
    begin, size = (tile - _number(_at(place, firsts))) * BLOCK, _number(_at(place, sizes))
    at_mean, at_curvature = _at(place, means) + begin + within, _at(place, curvatures) + begin + within
    at_noise = noise + _number(_at(place, noises)) + begin + within
    at_point = points + tile.to(tl.int64) * BLOCK + within
    if begin + BLOCK <= size:
        squares = _displace(at_mean, at_curvature, at_noise, at_point, None, offset, num_data)
    else:
        squares = _displace(at_mean, at_curvature, at_noise, at_point, begin + within < size, offset, num_data)
    tl.store(densities + tile, tl.where(tile == 0, weight * squares + constant, weight * squares))


@triton.jit
def _displace(at_mean, at_curvature, at_noise, at_point, inside, offset, num_data):
    metric = _load(at_curvature, inside, 1.0) + offset
    point = _load(at_mean, inside, 0.0) + _deviation(metric, num_data) * _load(at_noise, inside, 0.0)
    tl.store(at_point, point, mask=inside)
    return tl.sum(point * point)


@triton.jit(do_not_specialize=["base"])
def stepped(
    slopes, means, momenta, curvatures, products, firsts, sizes, noises, base, noise, rates, rate, correction, slope_scale,
    offset, hessian_scale, momentum, fresh, share, pull, clip_radius,
    DRAWN: tl.constexpr, CLIPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The update; see `ivon.ivon_step_`. ĝ (w − μ) is of the noise (DRAWN) or given as products."""
    tile = base + tl.program_id(0)
    place, within = _place(tile, firsts), tl.arange(0, BLOCK)
    begin, size = (tile - _number(_at(place, firsts))) * BLOCK, _number(_at(place, sizes))
    at_slope, at_mean = _at(place, slopes) + begin + within, _at(place, means) + begin + within
    at_momentum, at_curvature = _at(place, momenta) + begin + within, _at(place, curvatures) + begin + within
    if DRAWN:
        at_product = noise + _number(_at(place, noises)) + begin + within
        rate, correction = tl.load(rates), tl.load(rates + 1)
    else:
        at_product = _at(place, products) + begin + within
    if begin + BLOCK <= size:
        _step(
            at_slope, at_mean, at_momentum, at_curvature, at_product, None, rate, correction, slope_scale, offset,
            hessian_scale, momentum, fresh, share, pull, clip_radius, DRAWN, CLIPPED,
        )  # fmt: skip
    else:
        _step(
            at_slope, at_mean, at_momentum, at_curvature, at_product, begin + within < size, rate, correction, slope_scale,
            offset, hessian_scale, momentum, fresh, share, pull, clip_radius, DRAWN, CLIPPED,
        )  # fmt: skip


@triton.jit
def _step(
    at_slope, at_mean, at_momentum, at_curvature, at_product, inside, rate, correction, slope_scale, offset,
    hessian_scale, momentum, fresh, share, pull, clip_radius, DRAWN: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    gradient = _load(at_slope, inside, 0.0) * slope_scale
    mean, curvature = _load(at_mean, inside, 0.0), _load(at_curvature, inside, 1.0)
    metric, product = curvature + offset, _load(at_product, inside, 0.0)
    if DRAWN:
        product = gradient * (_deviation(metric, hessian_scale) * product)
    hessian = product * metric * hessian_scale
    average = tl.fma(gradient, tl.zeros_like(gradient) + fresh, _load(at_momentum, inside, 0.0) * momentum)
    x = tl.div_rn(curvature - hessian, metric) * share
    change = x * (x * 0.5 - 1.0) * metric
    direction = tl.fma(mean, tl.zeros_like(mean) + pull, average * correction)
    quotient = tl.div_rn(direction, metric + change)
    if CLIPPED:  # what is not a number stays one
        quotient = tl.where(quotient > clip_radius, clip_radius, quotient)
        quotient = tl.where(quotient < -clip_radius, -clip_radius, quotient)
    tl.store(at_momentum, average, mask=inside)
    tl.store(at_curvature, curvature + change, mask=inside)
    tl.store(at_mean, mean + quotient * rate, mask=inside)
