"""Triton kernels of a convolution's per-example gradients; imported where there is a GPU only.

The gradient of example i is a matrix Gᵢ = δᵢ Pᵢᵀ of output channels beside (tap, input channel), where δᵢ is the gradient
of the output, Pᵢ holds the windows, and the product runs over positions. A program owns one tile of that matrix and a run
of examples: it computes the tile of Gᵢ by the tensor cores, adds it and its square to sums in registers, and goes on to the
next example. Windows are read from the image where they lie. Every run of examples writes its own sums, which a second
kernel adds up in a fixed order, so results are the same every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers of which a kernel knows nothing beforehand: a new one asks for no new kernel.
ANY = [
    "examples", "images", "run", "height", "width", "kernel_width",
    "step_down", "step_across", "before_top", "before_left", "spread_down", "spread_across",
]  # fmt: skip


@triton.jit(do_not_specialize=ANY)
def tile_sums(
    image, slope, factors, out,
    examples, images, run, outs, channels, columns, height, width, positions, kernel_width,
    step_down, step_across, before_top, before_left, spread_down, spread_across,
    image_n, image_c, image_h, image_w, slope_n, slope_o, slope_p,
    ACROSS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    TAPS_APART: tl.constexpr, ONE_BLOCK: tl.constexpr, WEIGHTED: tl.constexpr, SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over one run of examples of one tile of Gᵢ (plane 0) and of fᵢ Gᵢ² (plane 1; alone without SUMS).

    `image` is (images, channels, height, width) by its strides, and example i sees image i % images; `slope` is (examples,
    outs, positions) by its strides; `factors` (images,) are the fᵢ where WEIGHTED; `out` is (runs, planes, outs, columns).
    A program sees `run` examples. There are taps × channels columns, channels running first. A row of the output has ACROSS
    positions. With TAPS_APART a tile stays within one tap, so that its channels are neighbours in memory; with ONE_BLOCK
    all positions fit into one block. PRECISION is that of products of float32, "tf32" or "ieee".
    """
    tiles_o = tl.cdiv(outs, BLOCK_O)
    tile_o, tile_c = tl.program_id(0) % tiles_o, tl.program_id(0) // tiles_o
    first = tl.program_id(1) * run
    last = tl.minimum(first + run, examples)
    o = tile_o * BLOCK_O + tl.arange(0, BLOCK_O)
    if TAPS_APART:
        blocks = tl.cdiv(channels, BLOCK_C)
        tap = tile_c // blocks
        c = (tile_c % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
        column = tap * channels + c
        there = c < channels
    else:
        column = tile_c * BLOCK_C + tl.arange(0, BLOCK_C)
        tap = column // channels
        c = column % channels
        there = column < columns
    down = (tap // kernel_width) * spread_down - before_top  # of the tap, from the window's corner
    right = (tap % kernel_width) * spread_across - before_left
    p = tl.arange(0, BLOCK_P)
    far_slope, far_image = slope_n.to(tl.int64), image_n.to(tl.int64)  # a batch may be longer than 32-bit offsets
    sums = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
    for i in range(first, last):
        own_slope = slope + i * far_slope
        own_image = image + (i % images) * far_image
        gradient = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
        if ONE_BLOCK:
            delta = _slope_tile(own_slope, o, p, outs, positions, slope_o, slope_p)
            windows = _window_tile(
                own_image, p, c, there, down, right, height, width, positions, step_down, step_across,
                image_c, image_h, image_w, ACROSS, TAPS_APART,
            )  # fmt: skip
            gradient = tl.dot(delta, windows, gradient, input_precision=PRECISION)
        else:
            for start in range(0, positions, BLOCK_P):
                delta = _slope_tile(own_slope, o, start + p, outs, positions, slope_o, slope_p)
                windows = _window_tile(
                    own_image, start + p, c, there, down, right, height, width, positions, step_down, step_across,
                    image_c, image_h, image_w, ACROSS, TAPS_APART,
                )  # fmt: skip
                gradient = tl.dot(delta, windows, gradient, input_precision=PRECISION)
        if SUMS:
            sums += gradient
        if WEIGHTED:
            squares += gradient * (gradient * tl.load(factors + i % images))
        else:
            squares += gradient * gradient
    _write(out, sums, squares, o, column, (o < outs)[:, None] & there[None, :], outs * columns, columns, SUMS)


@triton.jit(do_not_specialize=ANY)
def pair_sums(
    image, slope, factors, out,
    examples, images, run, outs, channels, columns, height, width, positions, kernel_width,
    step_down, step_across, before_top, before_left, spread_down, spread_across,
    image_n, image_c, image_h, image_w, slope_n, slope_o, slope_p,
    ACROSS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    WEIGHTED: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `tile_sums` writes, for few positions: (Σₚ δₚ wₚ)² = Σₚ Σ_q δₚ δ_q wₚ w_q is a product over examples for each pair.

    Every example has an image of its own. BLOCK_N of them are multiplied and added at a time, and pairs of which one window
    is in the padding are left out: of a 3 x 3 kernel on 2 x 2 places, 26 of 90 are left. A tile stays within one tap.
    """
    tiles_o, blocks = tl.cdiv(outs, BLOCK_O), tl.cdiv(channels, BLOCK_C)
    tile_o, tile_c = tl.program_id(0) % tiles_o, tl.program_id(0) // tiles_o
    first = tl.program_id(1) * run
    last = tl.minimum(first + run, examples)
    o = tile_o * BLOCK_O + tl.arange(0, BLOCK_O)
    tap = tile_c // blocks
    c = (tile_c % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    down = (tap // kernel_width) * spread_down - before_top
    right = (tap % kernel_width) * spread_across - before_left
    far_slope, far_image = slope_n.to(tl.int64), image_n.to(tl.int64)
    sums = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
    n = tl.arange(0, BLOCK_N)
    slopes = o[:, None] * slope_o + n[None, :] * slope_n
    windows = n[:, None] * image_n + c[None, :] * image_c
    for start in range(first, last, BLOCK_N):
        here = start + n < last
        own_slope, own_image = slope + start * far_slope, image + start * far_image
        of_slope, of_image = (o < outs)[:, None] & here[None, :], here[:, None] & (c < channels)[None, :]
        for p in range(0, positions):
            y, x = (p // ACROSS) * step_down + down, (p % ACROSS) * step_across + right
            if (y >= 0) & (y < height) & (x >= 0) & (x < width):
                delta = tl.load(own_slope + p * slope_p + slopes, mask=of_slope, other=0.0)
                window = tl.load(own_image + y * image_h + x * image_w + windows, mask=of_image, other=0.0)
                if SUMS:
                    sums = tl.dot(delta, window, sums, input_precision=PRECISION)
                if WEIGHTED:
                    weighted = delta * tl.load(factors + start + n, mask=here, other=0.0)[None, :]
                else:
                    weighted = delta
                squares = tl.dot(weighted * delta, window * window, squares, input_precision=PRECISION)
                for q in range(p + 1, positions):
                    y, x = (q // ACROSS) * step_down + down, (q % ACROSS) * step_across + right
                    if (y >= 0) & (y < height) & (x >= 0) & (x < width):
                        other = tl.load(own_slope + q * slope_p + slopes, mask=of_slope, other=0.0)
                        beside = tl.load(own_image + y * image_h + x * image_w + windows, mask=of_image, other=0.0)
                        squares = tl.dot(
                            2.0 * weighted * other, window * beside, squares, input_precision=PRECISION
                        )  # fmt: skip
    squares = tl.where(squares < 0, 0.0, squares)  # as rounding may leave a difference
    inside = (o < outs)[:, None] & (c < channels)[None, :]
    _write(out, sums, squares, o, tap * channels + c, inside, outs * columns, columns, SUMS)


@triton.jit
def _write(out, sums, squares, o, column, inside, plane, columns, SUMS: tl.constexpr):
    """The tile of this run of examples, plane by plane."""
    place = o[:, None] * columns + column[None, :]
    out += tl.program_id(1).to(tl.int64) * plane * (2 if SUMS else 1)
    if SUMS:
        tl.store(out + place, sums, mask=inside)
        out += plane
    tl.store(out + place, squares, mask=inside)


@triton.jit
def _slope_tile(slope, o, q, outs, positions, slope_o, slope_p):
    """(outs, positions) of one example."""
    inside = (o < outs)[:, None] & (q < positions)[None, :]
    return tl.load(slope + o[:, None] * slope_o + q[None, :] * slope_p, mask=inside, other=0.0)


@triton.jit
def _window_tile(
    image, q, c, there, down, right, height, width, positions, step_down, step_across,
    image_c, image_h, image_w, ACROSS: tl.constexpr, TAPS_APART: tl.constexpr,
):  # fmt: skip
    """(positions, columns) of one example: what the taps see, zero in the padding."""
    row, place = (q // ACROSS) * step_down, (q % ACROSS) * step_across
    if TAPS_APART:  # one tap for the whole tile
        y, x = row + down, place + right
        seen = (q < positions) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        offset = (y * image_h + x * image_w)[:, None] + (c * image_c)[None, :]
        return tl.load(image + offset, mask=seen[:, None] & there[None, :], other=0.0)
    y, x = row[:, None] + down[None, :], place[:, None] + right[None, :]
    seen = (q < positions)[:, None] & there[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return tl.load(image + y * image_h + x * image_w + (c * image_c)[None, :], mask=seen, other=0.0)


@triton.jit(do_not_specialize=["runs", "rows"])
def added_up(
    partial, out, runs, rows, channels, taps, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr
):
    """(runs, rows, taps, channels) → (rows, channels, taps), summed over the runs."""
    row, columns = tl.program_id(0).to(tl.int64), channels * taps
    r = tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.arange(0, BLOCK_T)
    inside = (c < channels)[:, None] & (t < taps)[None, :]
    source = partial + row * columns + (t[None, :] * channels + c[:, None])
    far = (rows * columns).to(tl.int64)
    total = tl.zeros((BLOCK_R, BLOCK_C, BLOCK_T), dtype=tl.float32)
    for start in range(0, runs, BLOCK_R):  # several at a time, since each load waits long
        mask = (start + r < runs)[:, None, None] & inside[None, :, :]
        total += tl.load(source[None, :, :] + (start + r)[:, None, None] * far, mask=mask, other=0.0)
    tl.store(out + row * columns + (c[:, None] * taps + t[None, :]), tl.sum(total, 0), mask=inside)


@triton.jit
def transposed(matrices, out, rows, columns, BLOCK: tl.constexpr):
    """(N, rows, columns) → (N, columns, rows)."""
    example = tl.program_id(0).to(tl.int64) * rows * columns
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    r = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(matrices + example + r[:, None] * columns + c[None, :], mask=mask)
    tl.store(out + example + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(mask))
