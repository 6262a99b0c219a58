"""IVON's step on a GPU in two passes over the weights: one that draws them, one that does all of the update.

In multi-tensor operations an update passes over the weights about thirty times. Random numbers are the same ones; results
may differ in their last bits, as between any two devices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.schedules import Constant, Cosine
from ...weights.algebra import Weights, under_vmap
from ...weights.gpu_kernels import kernels_run_on, launch
from ...weights.rng import Keys

SLOTS = 16  # tensors a launch takes, as arguments by value: a table in memory could not be written while a graph is recorded
BLOCK = 1024  # weights of a tile
ALIGNED = 16  # bytes: what kernels read at a time
LARGEST = 2**31 - BLOCK * SLOTS  # weights: places are 32-bit numbers
NEVER = 2**31 - 2  # the first tile of a tensor that is not there


def usable(*families: Mapping[str, Tensor]) -> bool:
    """Whether the kernels can step these: plain memory, single precision, on one GPU; a rule of kinds and not of values."""
    if under_vmap() or torch._C._len_torch_dispatch_stack() != 0:
        return False
    tensors = [t for family in families for t in family.values()]
    if not tensors or not kernels_run_on(tensors[0].device):
        return False
    return all(t.device == tensors[0].device and _plain(t) for t in tensors) and all(
        sum(t.numel() for t in family.values()) < LARGEST for family in families
    )


def numbers_alone(*settings: Any) -> bool:
    """Whether all settings are Python's numbers, or None; a run of many modes may have tensors there."""
    return all(s is None or isinstance(s, int | float) for s in settings)


class Draw(NamedTuple):
    """What the first pass leaves for the second.

    Attributes:
        points: w.
        log_prior: log p(w) of the normal prior.
        noise: ε of all weights, by sorted names.
        rates: What the mean's step is multiplied by, and one over 1 − β₁ᵗ.
    """

    points: Weights
    log_prior: Tensor
    noise: Tensor
    rates: Tensor


def draw(
    state: Mapping[str, Any], rng: Keys, *, precision: float, num_data: float, temperature: float, momentum: float,
    rate: float, schedule: Callable[[Tensor], Tensor], num_steps: int,
) -> Draw:  # fmt: skip
    """w = μ + σ ε, with the rates of this step.

    Args:
        state: Of `pl.IVON`.
        rng: Of the step; one call is spent, the one that the plain path spends.
        precision: δ, one number for all weights.
        num_data: N.
        temperature: T.
        momentum: β₁.
        rate: α at its highest.
        schedule: Of α.
        num_steps: Of the run.
    """
    from .fused_ivon_kernels import displaced as kernel  # needs Triton

    params, final = state["params"], _final(schedule)
    count, like = sum(w.numel() for w in params.values()), next(iter(params.values()))
    noise, launches = rng.normal(count), _launches_of(params)
    tiles = launches[-1].base + launches[-1].tiles
    points, densities = like.new_empty(tiles * BLOCK), like.new_empty(tiles)
    rates = like.new_empty(2)
    multiple = state["rescale"]
    if final is None:  # in memory of the device also where a user's function gives a plain number
        multiple = torch.ones_like(multiple) * schedule(rng.step.double() / num_steps)
    weight = -0.5 * precision / temperature
    constant = 0.5 * count * (math.log(precision) - math.log(2 * math.pi)) / temperature
    for own in launches:
        launch(
            kernel, own.tiles, own.slots(params), own.slots(state["curvature"]), own.firsts, own.sizes, own.noises,
            own.base, noise, points, densities, precision / num_data, num_data / temperature, weight, constant, rates,
            rng.step, state["rescale"], multiple, float(rate), float(num_steps), 0.0 if final is None else float(final),
            math.log(momentum) if momentum > 0 else -math.inf, COSINE=final is not None, BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    # A tensor starts at a tile, so that libraries find weights where their fast kernels want them.
    starts = [first * BLOCK for own in launches for first in own.begins]
    views = {k: points[s : s + w.numel()].view(w.shape) for s, (k, w) in zip(starts, params.items(), strict=True)}
    return Draw(views, densities.sum(), noise, rates)


def step_(
    state: Mapping[str, Weights], slopes: Mapping[str, Tensor], drawn: Draw, *, precision: float, num_data: float,
    temperature: float, momentum: float, decay: float, clip_radius: float | None,
) -> None:  # fmt: skip
    """One update of state["params"], state["momentum"] and state["curvature"], in place; see `ivon.ivon_step_`.

    Args:
        state: The three dictionaries.
        slopes: Of the log likelihood of all data over T, at w.
        drawn: What `draw` gave.
        precision: δ.
        num_data: N.
        temperature: T.
        momentum: β₁.
        decay: β₂.
        clip_radius: Largest entry of what α multiplies.
    """
    _step(
        state, slopes, slopes, drawn.noise, drawn.rates, 0.0, 0.0, -temperature / num_data, num_data / temperature,
        precision, num_data, momentum, decay, clip_radius,
    )  # fmt: skip


def step_of_products_(
    state: Mapping[str, Weights], gradient: Mapping[str, Tensor], products: Mapping[str, Tensor], *, rate: float, count: int,
    precision: float, num_data: float, momentum: float, decay: float, clip_radius: float | None,
) -> None:  # fmt: skip
    """The same update from gradients of the mean negative log likelihood and from ĝ (w − μ), both averages over draws."""
    like = next(iter(state["params"].values()))
    correction = 1.0 / (1.0 - momentum**count)
    _step(
        state, gradient, products, like, like, -rate, correction, 1.0, num_data,
        precision, num_data, momentum, decay, clip_radius, drawn=False,
    )  # fmt: skip


def _step(
    state: Mapping[str, Weights], slopes: Mapping[str, Tensor], products: Mapping[str, Tensor], noise: Tensor, rates: Tensor,
    rate: float, correction: float, slope_scale: float, hessian_scale: float, precision: float, num_data: float,
    momentum: float, decay: float, clip_radius: float | None, drawn: bool = True,
) -> None:  # fmt: skip
    from .fused_ivon_kernels import stepped as kernel  # needs Triton

    params = state["params"]
    slopes = {k: _as_plain(slopes[k]) for k in params}
    products = slopes if drawn else {k: _as_plain(products[k]) for k in params}
    for own in _launches_of(params):
        launch(
            kernel, own.tiles, own.slots(slopes), own.slots(params), own.slots(state["momentum"]),
            own.slots(state["curvature"]), own.slots(products), own.firsts, own.sizes, own.noises, own.base, noise, rates,
            rate, correction, slope_scale, precision / num_data, hessian_scale, float(momentum), 1.0 - momentum, 1.0 - decay,
            1.0 / num_data * precision, 0.0 if clip_radius is None else float(clip_radius),
            DRAWN=drawn, CLIPPED=clip_radius is not None, BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    # Autograd does not see what a kernel writes: a backward pass through weights that are gone has to be an error.
    torch.autograd.graph.increment_version(
        [t for what in ("params", "momentum", "curvature") for t in state[what].values()]
    )


def _final(schedule: Callable[[Tensor], Tensor]) -> float | None:
    """Where half a cosine from 1 ends, if that is what a schedule is."""
    if type(schedule) is Constant:
        return 1.0
    return schedule.final if type(schedule) is Cosine else None


def _plain(t: Tensor) -> bool:
    return t.dtype == torch.float32 and t.is_contiguous() and t.data_ptr() % ALIGNED == 0


def _as_plain(t: Tensor) -> Tensor:
    return t if _plain(t) else t.to(torch.float32).clone(memory_format=torch.contiguous_format)


class _Launch(NamedTuple):
    """A run of tensors that one launch takes.

    Attributes:
        members: Which.
        base: Its first tile.
        tiles: How many it has.
        begins: The first tile of every tensor.
        firsts: The same as arguments, one for every slot.
        sizes: Weights of a tensor, likewise.
        noises: Where its random numbers begin, likewise.
    """

    members: slice
    base: int
    tiles: int
    begins: tuple[int, ...]
    firsts: tuple[int, ...]
    sizes: tuple[int, ...]
    noises: tuple[int, ...]

    def slots(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The launch's tensors; those that are not there are the last one again, which no tile asks for."""
        own = tuple(weights.values())[self.members]
        return own + own[-1:] * (SLOTS - len(own))


def _launches_of(params: Mapping[str, Tensor]) -> tuple[_Launch, ...]:
    starts, begin = {}, 0
    for k in sorted(params):  # the order in which `Keys` cuts up a draw
        starts[k], begin = begin, begin + params[k].numel()
    return _launches(tuple(w.numel() for w in params.values()), tuple(starts[k] for k in params))


@functools.lru_cache(maxsize=64)
def _launches(sizes: tuple[int, ...], noises: tuple[int, ...]) -> tuple[_Launch, ...]:
    begins = list(itertools.accumulate((-(-n // BLOCK) for n in sizes), initial=0))
    found = []
    for low in range(0, len(sizes), SLOTS):
        high = min(low + SLOTS, len(sizes))
        own = tuple(begins[low:high])
        firsts, lengths, places = _slots(own, NEVER), _slots(sizes[low:high], 0), _slots(noises[low:high], 0)
        tiles = begins[high] - begins[low]
        found.append(_Launch(slice(low, high), begins[low], tiles, own, firsts, lengths, places))
    return tuple(found)


def _slots(values: Sequence[int], missing: int) -> tuple[int, ...]:
    return tuple(_coded(v) for v in [*values, *[missing] * (SLOTS - len(values))])


def _coded(value: int) -> int:
    """A number as an argument in a tuple.

    Triton compiles a kernel anew for numbers of another width, for those that 16 divides and for 1. These are all of one
    kind, so that one kernel serves all networks.
    """
    return (value + 1) << 32 | 3
