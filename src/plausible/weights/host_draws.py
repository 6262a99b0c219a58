"""Threefry and what is made of its words by NumPy, on a CPU and outside of any transform.

A draw of a few hundred numbers is some hundred operations on short arrays, which cost NumPy a fraction of what they cost
torch. The bits are the same: integers, sums and products here, and roots, logarithms, sines and cosines by torch in both,
whose last bits are its own. A step's key is the last step's plus one, so whoever draws step after step gets the next few
steps' numbers made at once: what is remembered is what would be computed, and nothing depends on it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .algebra import under_vmap

Array = np.ndarray[Any, Any]

PARITY = 0x1BD11BDA  # keeps the all-zero key from being a weak one
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
GROUPS = 5  # of four rounds each, with the key added after each
MASK = 0xFFFFFFFF

BLOCK = 32_768  # counters whose words stay in the cache through all rounds
FEW_THREADS = 2  # with more of them torch's kernels, which share long tensors out, overtake NumPy's
WIDE = 1 << 31  # the bit of the high counter word that keeps float64 apart from float32 within one call

SHORT = 4096  # numbers, up to which a draw costs what its operations cost, whatever their length
AHEAD = 16  # steps whose short draws are made at once
REMEMBERED = 64  # places of a run (mode, call, length) that are drawn ahead for

_SHIFTS = tuple(tuple((np.uint32(d), np.uint32(32 - d)) for d in distances) for distances in ROTATIONS)


def _is_followed() -> bool:
    """Whether a mode follows what tensors are computed from, to which numbers from NumPy would come out of nowhere."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(getattr(mode, "follows_constants", False) for mode in modes)


def is_at_hand(*tensors: Tensor, counters: int) -> bool:
    """Whether NumPy may take these tensors and is the faster: plain memory that nobody traces or watches."""
    if counters > BLOCK and torch.get_num_threads() > FEW_THREADS:
        return False
    if under_vmap() or torch._C._len_torch_dispatch_stack() > 0 or _is_followed():
        return False
    return all(type(t) is Tensor and t.device.type == "cpu" for t in tensors)


def encrypt(key: tuple[int, int], low: Array, high: int, steps: int = 1) -> Array:
    """Threefry-2x32 of the counters (low, high), shape (n,), under `steps` keys in a row: unsigned words (2, steps, n)."""
    rows = (np.arange(steps, dtype=np.uint32) + np.uint32(key[0]))[:, None]
    schedule: tuple[Any, ...] = (rows, key[1], rows ^ np.uint32(key[1] ^ PARITY))
    groups = [(_word(schedule[g % 3]), _word(schedule[(g + 1) % 3] + g)) for g in range(1, GROUPS + 1)]
    words = np.empty((2, steps, low.size), np.uint32)
    np.add(low, rows, words[0])
    words[1] = high + key[1] & MASK
    for begin in range(0, low.size, BLOCK):
        block = words[:, :, begin : begin + BLOCK]
        _encrypt_(block[0], block[1], groups)
    return words


def _word(number: Any) -> Any:
    return number if isinstance(number, np.ndarray) else np.uint32(number & MASK)


def _encrypt_(first: Array, second: Array, groups: Sequence[tuple[Any, Any]]) -> None:
    """All rounds on one block, in place; unsigned words wrap around as they should."""
    overflow = np.empty_like(second)
    for group, (k0, k1) in enumerate(groups):
        for left, right in _SHIFTS[group % 2]:
            np.add(first, second, first)
            np.left_shift(second, left, overflow)
            np.right_shift(second, right, second)
            np.bitwise_or(second, overflow, second)
            np.bitwise_xor(second, first, second)
        np.add(first, k0, first)
        np.add(second, k1, second)


class Drawn:
    """Numbers of one law, by key and call.

    Args:
        law: (key, call, n, steps) → numbers (steps, n).
    """

    def __init__(self, law: Callable[[tuple[int, int], int, int, int], Array]):
        self.law = law
        self._ahead: dict[tuple[int, int, int], tuple[int, Array]] = {}  # by place: the first step's key, and rows

    def __call__(self, key: tuple[int, int], call: int, n: int) -> Tensor:
        """n numbers."""
        if n > SHORT:
            return torch.from_numpy(self.law(key, call, n, 1)[0])
        place = (key[1], call, n)
        first, rows = self._ahead.get(place, (key[0] + 1, _NO_ROWS))
        passed = key[0] - first & MASK
        if passed >= len(rows):
            # What follows the last row is a run going on; anything else may be a lone question.
            first, rows = key[0], self.law(key, call, n, AHEAD if passed == len(rows) else 1)
            if len(self._ahead) >= REMEMBERED:
                self._ahead.clear()
            self._ahead[place], passed = (first, rows), 0
        return torch.from_numpy(rows[passed].copy())


_NO_ROWS = np.empty((0, 0), np.float32)


def _normals(dtype: type, key: tuple[int, int], call: int, n: int, steps: int) -> Array:
    """Box and Muller's pairs: the first half of a row's numbers are the cosines, the second half the sines."""
    first, second = _signed_pairs(dtype, key, call, (n + 1) // 2, steps)
    radius = torch.from_numpy(_unsigned(first)).log_().mul_(-2).sqrt_().numpy()
    second *= 2 * math.pi
    angle = torch.from_numpy(second)
    pairs = np.empty((steps, 2, second.shape[1]), dtype)
    np.multiply(angle.cos().numpy(), radius, pairs[:, 0])
    np.multiply(angle.sin().numpy(), radius, pairs[:, 1])
    return pairs.reshape(steps, -1)[:, :n]


def _uniforms(dtype: type, key: tuple[int, int], call: int, n: int, steps: int) -> Array:
    """Strictly between 0 and 1."""
    pairs = _unsigned(_signed_pairs(dtype, key, call, (n + 1) // 2, steps))
    return pairs.swapaxes(0, 1).reshape(steps, -1)[:, :n]


def _signed_pairs(dtype: type, key: tuple[int, int], call: int, pairs: int, steps: int) -> Array:
    """Independent numbers (2, steps, pairs), uniform in [-1/2, 1/2] and never 0."""
    if dtype is np.float32:
        return _signed(encrypt(key, np.arange(pairs, dtype=np.uint32), call, steps), dtype)
    high, low = encrypt(key, np.arange(2 * pairs, dtype=np.uint32), call | WIDE, steps)
    numbers = high.view(np.int32) + _unsigned(_signed(low, dtype))
    numbers *= 2.0**-32
    return np.ascontiguousarray(numbers.reshape(steps, 2, pairs).swapaxes(0, 1))


def _signed(words: Array, dtype: type) -> Array:
    numbers: Array = words.view(np.int32).astype(dtype)
    numbers += 0.5
    numbers *= 2.0**-32
    return numbers


def _unsigned(fraction: Array) -> Array:
    """Uniform in (0, 1); see `rng._unsigned`."""
    number = fraction + (fraction < 0)
    return np.minimum(number, 1 - np.finfo(number.dtype).eps / 2, out=number)


def _drawn(law: Callable[..., Array]) -> dict[torch.dtype, Drawn]:
    types = {torch.float32: np.float32, torch.float64: np.float64}
    return {precision: Drawn(functools.partial(law, dtype)) for precision, dtype in types.items()}


normals, uniforms = _drawn(_normals), _drawn(_uniforms)
