"""Random numbers as a function of (seed, mode, step, call): keys in, numbers out, no state and no global generator.

A run has a key, made from its seed and mode. A step adds its number to the key; a call is one half of Threefry's
counter, whose other half numbers the elements. Threefry is made for neighbouring keys and counters, so a draw is one
evaluation of plain integer operations: the same bits eagerly, under `vmap` and compiled, and nothing in it that a CUDA
graph cannot record.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, overload

import torch
from torch import Tensor

from plausible.weights.twin import twin

from . import device_draws, host_draws
from .threefry import as_int32, counters, threefry, threefry_int

Device = torch.device | str | int | None
Shape = int | Sequence[int]
Words = tuple[Tensor, Tensor]

_MASK, WIDE = host_draws.MASK, host_draws.WIDE


def run_key(seed: int, mode: int | Tensor = 0, *, device: Device = None) -> Tensor:
    """The int32 key, shape (2,), of one mode of one run.

    Args:
        seed: Any integer. Those of 64 unsigned bits give a mode a key each; larger and negative ones are hashed.
        mode: Which of the run's modes. A 0-d integer tensor, also a batched one, gives the key on its own device.
        device: Where to put the key of a mode that is a number.
    """
    root = _to_64_bits(seed)
    if isinstance(mode, Tensor):
        low = mode.to(torch.int32)
        zero = low & 0
        return torch.stack(threefry((zero | as_int32(root), zero | as_int32(root >> 32)), low), dim=-1)
    word = threefry_int(root, operator.index(mode) & 0xFFFFFFFF)
    return torch.tensor([as_int32(word), as_int32(word >> 32)], dtype=torch.int32, device=device)


def run_keys(seed: int | Sequence[int], modes: int, *, device: Device = None) -> Tensor:
    """The keys of modes 0, 1, ... of a run, one in each row; of several seeds, all modes of the first come first."""
    seeds = list(seed) if isinstance(seed, Sequence) else [seed]
    if not seeds or modes < 1:
        raise ValueError(f"run_keys needs at least one seed and one mode, got {len(seeds)} seeds and modes={modes}")
    return torch.stack([run_key(s, mode, device=device) for s in seeds for mode in range(modes)])


class Keys:
    """The `rng` of one step: each method call spends one call, and its numbers depend on (key, step, call) alone.

    Make a new one for every step, inside whatever is vmapped, compiled or captured.
    """

    def __init__(self, key: Tensor, step: Tensor, call: int = 0):
        """Bind a run's key to one of its steps.

        Args:
            key: What `run_key` gives, or one row of `run_keys` inside `vmap`.
            step: 0-d integer tensor on the key's device, of which the low 32 bits count.
            call: How many calls of this step are spent already.
        """
        if key.dtype != torch.int32 or key.shape != (2,):
            raise ValueError(
                f"a key is int32 of shape (2,), got {key.dtype} of shape {tuple(key.shape)}; make one with run_key, "
                "and use the rows of run_keys one by one or under vmap"
            )
        if step.shape != () or step.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"step must be a 0-d int32 or int64 tensor, got {step.dtype} of shape {tuple(step.shape)}")
        self._key, self._call = key, call
        self.step = step

    @property
    def _words(self) -> Words:
        return self._key[0] + self.step.to(torch.int32), self._key[1]

    def later(self, call: int) -> "Keys":
        """The same step's numbers from a later call on."""
        later = twin(self)
        later._call = call
        return later

    def normal(self, shape: Shape = (), dtype: torch.dtype = torch.float32, device: Device = None) -> Tensor:
        """Standard normals."""
        return self._draw(NORMAL, {"": self._wanted(shape, dtype, device)})[""]

    def uniform(self, shape: Shape = (), dtype: torch.dtype = torch.float32, device: Device = None) -> Tensor:
        """Uniform numbers strictly between 0 and 1: log(u) and log(1 - u) are finite."""
        return self._draw(UNIFORM, {"": self._wanted(shape, dtype, device)})[""]

    def bernoulli(self, shape: Shape, p: float | Tensor) -> Tensor:
        """Booleans that are true with probability `p`, which may be a tensor that broadcasts to `shape`."""
        return self.uniform(shape) < p

    def randint(self, high: int, shape: Shape = ()) -> Tensor:
        """Integers from 0 to `high` - 1, as int64."""
        if not 1 <= high <= 2**53:
            raise ValueError(f"high must be between 1 and 2**53, got {high}")
        sizes = _sizes(shape)
        # The largest uniform is 1 - 2^-53, and its product with `high` rounds to less than `high`. There is one axis to
        # the end because Inductor passes a number that multiplies a 0-d tensor under vmap through float32.
        return (self.uniform(math.prod(sizes), torch.float64) * high).to(torch.int64).reshape(sizes)

    def key(self) -> Tensor:
        """A key of its own, int32 of shape (2,), for a part that makes its own `Keys`: a dropout layer, say."""
        call = self._spend()
        if device_draws.is_on_device(self._key, self.step):
            return device_draws.new_key(self._key, self.step, call)
        words = self._words
        return torch.stack(threefry(words, words[0] & 0, call), dim=-1)

    @overload
    def normal_like(self, params: Tensor) -> Tensor: ...
    @overload
    def normal_like(self, params: dict[str, Tensor]) -> dict[str, Tensor]: ...
    def normal_like(self, params: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """Standard normals in the shape, dtype and device of a tensor, or of each tensor of a dict."""
        return self._draw_like(NORMAL, params)

    @overload
    def uniform_like(self, params: Tensor) -> Tensor: ...
    @overload
    def uniform_like(self, params: dict[str, Tensor]) -> dict[str, Tensor]: ...
    def uniform_like(self, params: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """What `uniform` gives, in the shape, dtype and device of a tensor, or of each tensor of a dict."""
        return self._draw_like(UNIFORM, params)

    def _spend(self) -> int:
        call = self._call
        if call >= WIDE:
            raise ValueError(f"a step has at most 2**31 calls, got call {call}")
        self._call = call + 1
        return call

    def _wanted(self, shape: Shape, dtype: torch.dtype, device: Device) -> "_Wanted":
        return _Wanted(_sizes(shape), dtype, self._key.device if device is None else torch.device(device))

    def _draw_like(self, law: "_Law", params: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        if isinstance(params, Tensor):
            return self._draw(law, {"": _Wanted(tuple(params.shape), params.dtype, params.device)})[""]
        return self._draw(law, {name: _Wanted(tuple(p.shape), p.dtype, p.device) for name, p in params.items()})

    def _draw(self, law: "_Law", wanted: "dict[str, _Wanted]") -> dict[str, Tensor]:
        """One call: one evaluation for each precision, cut up in sorted name order whatever the order of `wanted`."""
        call = self._spend()
        for name, want in wanted.items():
            if not want.dtype.is_floating_point:
                raise TypeError(f"random numbers need a floating point dtype, got {want.dtype} for {name or 'a draw'}")
        drawn = {}
        for precision in (torch.float32, torch.float64):
            names = [k for k in sorted(wanted) if (wanted[k].dtype == torch.float64) == (precision == torch.float64)]
            if names:
                sizes = [math.prod(wanted[k].shape) for k in names]
                numbers = self._numbers(law, call, sum(sizes), precision)
                pieces = numbers.split(sizes) if len(sizes) > 1 else (numbers,)
                drawn.update({k: _cast(law, piece, wanted[k]) for k, piece in zip(names, pieces, strict=True)})
        return {name: drawn[name] for name in wanted}

    def _numbers(self, law: "_Law", call: int, n: int, precision: torch.dtype) -> Tensor:
        words = n // 2 if precision == torch.float32 else n
        if host_draws.is_at_hand(self._key, self.step, counters=words):
            low, high = self._key.tolist()
            return law.at_hand[precision]((low + int(self.step) & _MASK, high & _MASK), call, n)
        if precision == torch.float32 and device_draws.is_on_device(self._key, self.step):
            return device_draws.draw(self._key, self.step, call, n, normal=law is NORMAL)
        return law.anywhere(self._words, call, n, precision)


class _Wanted(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _sizes(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class _Law(NamedTuple):
    """How n numbers are made of a key and a call."""

    anywhere: Callable[[Words, int, int, torch.dtype], Tensor]
    at_hand: Mapping[torch.dtype, Callable[[tuple[int, int], int, int], Tensor]]


def _cast(law: _Law, numbers: Tensor, want: _Wanted) -> Tensor:
    numbers = numbers.reshape(want.shape)
    if numbers.dtype != want.dtype or numbers.device != want.device:
        numbers = numbers.to(want.device, want.dtype)
    if law is UNIFORM and want.dtype not in (torch.float32, torch.float64):
        # Rounding to few bits reaches 0 and 1; both bounds are the dtype's own neighbours of them.
        limits = torch.finfo(want.dtype)
        numbers = numbers.clamp(max(limits.tiny * limits.eps, 2.0**-33), 1 - limits.eps / 2)
    return numbers


def _normals(key: Words, call: int, n: int, dtype: torch.dtype) -> Tensor:
    """Box and Muller's pairs: the first half of the numbers are the cosines, the second half the sines."""
    first, second = _signed_pairs(key, call, (n + 1) // 2, dtype)
    radius = _unsigned(first).log_().mul_(-2).sqrt_()
    angle = second.mul_(2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)])[:n]


def _uniforms(key: Words, call: int, n: int, dtype: torch.dtype) -> Tensor:
    return _unsigned(torch.cat(_signed_pairs(key, call, (n + 1) // 2, dtype)))[:n]


def _signed_pairs(key: Words, call: int, pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two times `pairs` independent numbers, uniform in [-1/2, 1/2] and never 0."""
    device = key[0].device
    if dtype == torch.float32:
        first, second = threefry(key, counters(pairs, device), call)
        return _signed(first, dtype), _signed(second, dtype)
    high, low = threefry(key, counters(2 * pairs, device), call | WIDE)
    fraction = high.to(dtype).add_(_unsigned(_signed(low, dtype))).mul_(2.0**-32)
    return fraction[:pairs], fraction[pairs:]


def _signed(word: Tensor, dtype: torch.dtype) -> Tensor:
    return word.to(dtype).add_(0.5).mul_(2.0**-32)


def _unsigned(fraction: Tensor) -> Tensor:
    """Uniform in (0, 1) from uniform in [-1/2, 1/2].

    Floats are finest around 0, so the word's last bit survives there, where it makes the tail: the smallest float32 is
    2^-33, a normal 6.8 deviations out. Near 1, rounding would reach 1 itself.
    """
    return fraction.add(fraction < 0).clamp_max_(1 - torch.finfo(fraction.dtype).eps / 2)


NORMAL, UNIFORM = _Law(_normals, host_draws.normals), _Law(_uniforms, host_draws.uniforms)


def generator(*words: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator seeded by a hash of the given integers, for what is drawn outside of steps."""
    return torch.Generator(device).manual_seed(_hash(words))


def permutation(n: int, *words: int) -> Tensor:
    """A random order of 0, 1, ..., n - 1 on the CPU that the given integers determine."""
    return torch.randperm(n, generator=generator(*words))


@contextmanager
def forked(*words: int, devices: Iterable[torch.device | str] = ()) -> Iterator[None]:
    """Seed torch's global generators from the given integers, and put them back as they were at the end.

    Args:
        words: What the numbers drawn inside shall depend on.
        devices: The CUDA devices whose generators count too, besides the CPU's; others in the list are left alone.
    """
    cuda = [device for device in map(torch.device, devices) if device.type == "cuda"]
    with torch.random.fork_rng(devices=cuda):
        seed = _hash(words)
        # Not torch.manual_seed: it would also reseed the devices that are not put back.
        torch.default_generator.manual_seed(seed)
        for device in cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _hash(words: Iterable[int]) -> int:
    """64 bits that depend on every word, on their order and on their number."""
    words = [_to_64_bits(word) for word in words]
    state = len(words)
    for word in words:
        state = threefry_int(state, word)
    return state


def _to_64_bits(number: int) -> int:
    number = operator.index(number)
    if 0 <= number < 2**64:
        return number
    magnitude = abs(number)
    limbs = [magnitude >> shift & (2**64 - 1) for shift in range(0, magnitude.bit_length(), 64)]
    return _hash([int(number < 0), *limbs])
