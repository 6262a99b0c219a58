"""Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror & Shaw, *Parallel random numbers: as easy as 1, 2, 3*, 2011).

A keyed bijection of 64 bits, made of additions, rotations and exclusive ors. Counting through it gives a generator
whose state is a position, so that any number can be had at any time, in any order, on any device.
"""

import numpy as np
import torch
from torch import Tensor

from .host_draws import GROUPS, MASK, PARITY, ROTATIONS, encrypt, is_at_hand


def threefry(key: tuple[Tensor, Tensor], low: Tensor, high: int = 0) -> tuple[Tensor, Tensor]:
    """Encrypt the counters `(low, high)` under `key`.

    Args:
        key: Two int32 words that broadcast against `low`; under `vmap` the first is batched if the second is.
        low: The int32 low words of the counters, one per pair of words wanted.
        high: The high word that all the counters share, as an unsigned number.

    Returns:
        Two int32 tensors of the broadcast shape, whose bits are the two unsigned words of the result.
    """
    if key[0].dim() == 0 and low.dim() <= 1 and is_at_hand(*key, low, counters=low.numel()):
        return _at_hand((int(key[0]) & MASK, int(key[1]) & MASK), low, high)
    schedule = (key[0], key[1], (key[0] ^ key[1]) ^ PARITY)
    first = low + schedule[0]
    # The zero gives the second word the shape of the first and, under vmap, its batch axis: rounds work in place. Large
    # numbers meet tensors in bitwise operations only: Inductor passes one that is added under vmap through float32.
    second = (first & 0 | as_int32(high)) + schedule[1]
    for group in range(GROUPS):
        for distance in ROTATIONS[group % 2]:
            first.add_(second)
            _rotate_(second, distance).bitwise_xor_(first)
            if torch.compiler.is_compiling():
                first, second = _stored(first), _stored(second)
        first.add_(schedule[(group + 1) % 3])
        second.add_(schedule[(group + 2) % 3] + (group + 1))
    return first, second


def _at_hand(key: tuple[int, int], low: Tensor, high: int) -> tuple[Tensor, Tensor]:
    if low.dim() == 0:
        word = threefry_int(key[0] | key[1] << 32, int(low) & MASK | high << 32)
        return low.new_tensor(as_int32(word)), low.new_tensor(as_int32(word >> 32))
    words = torch.from_numpy(encrypt(key, low.numpy().view(np.uint32), high).view(np.int32))
    return words[0, 0], words[1, 0]


def _rotate_(word: Tensor, distance: int) -> Tensor:
    overflow = word.bitwise_left_shift(distance)
    # The right shift of a signed word copies its sign downwards; the mask makes the shift a logical one.
    word.bitwise_right_shift_(32 - distance).bitwise_and_((1 << distance) - 1)
    return word.bitwise_or_(overflow)


def _stored(word: Tensor) -> Tensor:
    """The same word, as a value that a compiler computes once.

    Inductor writes short expressions out at each of their uses, and a round uses its words several times: without this,
    a draw takes a minute to compile instead of seconds. A strided view asks for a stored value, which fusion then keeps
    in a register.
    """
    return word.as_strided(word.shape, word.stride()).clone()


def threefry_int(key: int, counter: int) -> int:
    """The same bijection on Python integers of 64 bits, the first word in the low half."""
    k0, k1 = key & MASK, key >> 32 & MASK
    schedule = (k0, k1, k0 ^ k1 ^ PARITY)
    first = (counter + k0) & MASK
    second = ((counter >> 32) + k1) & MASK
    for group in range(GROUPS):
        for distance in ROTATIONS[group % 2]:
            first = (first + second) & MASK
            second = (second << distance | second >> (32 - distance)) & MASK ^ first
        first = (first + schedule[(group + 1) % 3]) & MASK
        second = (second + schedule[(group + 2) % 3] + group + 1) & MASK
    return first | second << 32


def as_int32(word: int) -> int:
    """The signed number that has the low 32 bits of `word`: torch refuses an unsigned one beside int32 tensors."""
    return ((word & MASK) ^ 0x80000000) - 0x80000000


def counters(n: int, device: torch.device) -> Tensor:
    """The int32 counters 0, 1, ..., n - 1."""
    if n > 2**31:
        raise ValueError(f"one call draws at most 2**31 counters, got {n}; split the draw over several calls")
    return torch.arange(n, dtype=torch.int32, device=device)
