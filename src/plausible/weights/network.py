"""A private copy of the user's network that is a pure function of its weights.

The user's module is never touched. The copies differ from it in two ways that make them pure: in training, norms
with running statistics use the batch's own and keep none, and dropout layers draw from a key that comes in as an
input instead of from the global generator.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from .rng import Keys, forked

Inputs = Any  # A tensor, a tuple of tensors (passed as *inputs) or a dictionary of tensors (passed as **inputs).

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Layers whose per-mode weights gain nothing from vmap on a CPU, nor from a compiler: the library call is the cost.
LIBRARY_BOUND = (*CONVOLUTIONS, nn.RNNBase, nn.MultiheadAttention)
MASKED_AXES = {nn.Dropout: None, nn.Dropout1d: 2, nn.Dropout2d: 2, nn.Dropout3d: 2}


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of `key`, a buffer that every call of the network is given anew."""

    key: Tensor

    def __init__(self, rate: float, masked_axes: int | None):
        super().__init__()
        self.rate = self.p = rate  # p: what forward passes that drop by a function ask a layer for
        self.masked_axes = masked_axes  # None: every element has its own coin; 2: whole channels do.
        self.calls = 0
        self.register_buffer("key", torch.zeros(2, dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zero a random share of x and scale the rest up."""
        if not self.training:  # said aloud, so that a prediction under masks can drop here
            return (
                F.dropout(x, self.rate, False)
                if self.masked_axes is None
                else torch.feature_dropout(x, self.rate, False)
            )
        if self.rate == 0.0:
            return x
        if self.rate == 1.0:
            return torch.zeros_like(x)
        # A layer used twice in one forward must not repeat its mask.
        rng = Keys(self.key, self.key[0] * 0 + self.calls)
        self.calls += 1
        shape = x.shape if self.masked_axes is None else x.shape[: self.masked_axes] + (1,) * (x.dim() - 2)
        kept = rng.uniform(shape, dtype=torch.float32) >= self.rate
        return x * kept.to(x.dtype) / (1.0 - self.rate)


def _replace(module: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, new)


def _share(module: nn.Module) -> nn.Module:
    """A deep copy of the structure that shares parameters and buffers with the original."""
    memo: dict[int, Any] = {id(t): t for t in [*module.parameters(), *module.buffers()]}
    return copy.deepcopy(module, memo)


def _copied(module: nn.Module) -> nn.Module:
    """A deep copy; what a hook computed from weights, such as torch's older weight norm, is copied as the numbers that it is."""
    computed = [t for m in module.modules() for t in vars(m).values() if isinstance(t, Tensor) and not t.is_leaf]
    return copy.deepcopy(module, {id(t): t.detach().clone() for t in computed})


class Network:
    """The user's network as a function of (weights, inputs)."""

    def __init__(self, module: nn.Module):
        home = _copied(module).requires_grad_(False)
        self.home = home
        self.parameters: dict[str, Tensor] = {k: p.detach() for k, p in home.named_parameters()}
        # Tied weights are one unknown: every other name of the same tensor follows the first. Torch would look for them
        # at every call, which costs a small network more than its arithmetic.
        first = {id(p): k for k, p in home.named_parameters()}
        every = home.named_parameters(remove_duplicate=False)
        self.tied = {k: first[id(p)] for k, p in every if first[id(p)] != k}
        self.trainable = {k for k, p in module.named_parameters() if p.requires_grad}
        self.buffers: dict[str, Tensor] = dict(home.named_buffers())
        self.norms = [
            k
            for k, m in home.named_modules()
            if isinstance(m, _NormBase) and getattr(m, "running_mean", None) is not None
        ]
        self.statistics = [f"{k}.{b}" for k in self.norms for b in home.get_submodule(k)._buffers]
        self.dropouts = [
            k
            for k, m in home.named_modules(remove_duplicate=False)
            if type(m) in MASKED_AXES and m.p > 0.0  # type: ignore[operator, union-attr]
        ]
        self.library_bound = any(isinstance(m, LIBRARY_BOUND) for m in home.modules())
        self.convolves = any(isinstance(m, CONVOLUTIONS) for m in home.modules())
        self.written: list[str] = []  # buffers that a training pass writes; `fit` finds out
        self.draws = False  # whether a training pass draws from the global generator; likewise
        self.spread = False  # whether the copies keep the network's own devices, of which there are several
        self._placed: dict[tuple[torch.device, str], nn.Module] = {}

    def module(self, device: torch.device, role: str) -> nn.Module:
        """The copy on `device` for one of three roles: "eval", "train", or "refresh" (which gathers statistics)."""
        if (device, role) not in self._placed:
            module = _share(self.home)
            if not self.spread and any(t.device != device for t in [*module.parameters(), *module.buffers()]):
                module = copy.deepcopy(module).to(device)
            module.train(role == "train")
            for name in self.norms if role == "refresh" else ():  # all else as it will be when it predicts
                module.get_submodule(name).train()
            for name in self.norms if role == "train" else ():
                norm: Any = module.get_submodule(name)
                norm.track_running_stats = False
                for buffer in list(norm._buffers):
                    norm._buffers[buffer] = None
            for name in self.dropouts:
                old: Any = module.get_submodule(name)
                new = KeyedDropout(old.p, MASKED_AXES[type(old)]).to(device)
                _replace(module, name, new.train(role == "train"))
            self._placed[device, role] = module
        return self._placed[device, role]

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        inputs: Inputs,
        *,
        role: str = "eval",
        rng: Keys | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """Run the network with `weights` in place of its own; what is not in `weights` keeps its value."""
        device = next(iter(weights.values())).device if weights else _device_of(inputs)
        module = self.module(device, role)
        state = dict(weights)
        for alias, name in self.tied.items():
            if name in weights:
                state[alias] = weights[name]
        if buffers:
            state.update(buffers)
        if role == "train" and self.dropouts:
            if rng is None:
                raise ValueError("this network has dropout, so a training step must be given its rng")
            for name in self.dropouts:
                layer: Any = module.get_submodule(name)
                layer.calls = 0
                state[f"{name}.key"] = rng.key()
        if isinstance(inputs, Mapping):
            output = functional_call(module, state, (), dict(inputs), tie_weights=False)
        else:
            output = functional_call(
                module, state, inputs if isinstance(inputs, tuple) else (inputs,), tie_weights=False
            )
        if buffers:
            self._take_back(buffers, state)
        return output.logits if hasattr(output, "logits") else output

    @staticmethod
    def _take_back(buffers: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Buffers that a pass replaced by new tensors, instead of writing into them, are written, too."""
        for name, buffer in buffers.items():
            if state[name] is not buffer:
                buffer.copy_(state[name].detach())

    def set_refresh_momentum(self, device: torch.device, momentum: float) -> None:
        """How much the next batch counts in the statistics that the "refresh" copy gathers."""
        module = self.module(device, "refresh")
        for name in self.norms:
            module.get_submodule(name).momentum = momentum  # type: ignore[assignment]

    def fresh_buffers(self, device: torch.device) -> dict[str, Tensor]:
        """A copy of the norms' statistics to write into."""
        return {k: self.buffers[k].to(device, copy=True) for k in self.statistics}

    def side_effects(
        self, weights: Mapping[str, Tensor], inputs: Inputs, rng: Keys, role: str
    ) -> tuple[list[str], bool]:
        """Which buffers a pass writes, and whether it draws from torch's global generator."""
        device = next(iter(weights.values())).device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            before = _generator_states(device)
            buffers = {k: v.to(device, copy=True) for k, v in self.buffers.items() if k not in self.statistics}
            self(weights, inputs, role=role, rng=rng, buffers=buffers)
            after = _generator_states(device)
        written = [k for k, v in buffers.items() if not torch.equal(v, self.buffers[k].to(device))]
        return written, any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def reinitialised(self, seed: int) -> tuple[dict[str, Tensor], list[str]]:
        """Fresh weights by every layer's own `reset_parameters`, and the names of those that none of them reached."""
        module = copy.deepcopy(self.home)
        reached: set[int] = set()
        with forked(seed):
            for child in _children_first(module):
                reset = getattr(child, "reset_parameters", None) or getattr(child, "_reset_parameters", None)
                if callable(reset):
                    reset()
                    reached |= {id(p) for p in child.parameters(recurse=False)}
        fresh = dict(module.named_parameters())
        missed = [k for k, p in fresh.items() if id(p) not in reached]
        return {k: p.detach() for k, p in fresh.items()}, missed


def _children_first(module: nn.Module):
    for child in module.children():
        yield from _children_first(child)
    yield module


def _generator_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _device_of(inputs: Inputs) -> torch.device:
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    return inputs[0].device if isinstance(inputs, tuple) else inputs.device
