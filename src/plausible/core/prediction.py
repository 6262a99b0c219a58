"""Run a network for many draws of its weights and many inputs, in blocks that follow from shapes and a budget alone."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..weights import tree
from ..weights.algebra import Weights, size, slow_vmap_is_an_error
from ..weights.rng import forked
from . import batch as batches
from .dropout_run import DropoutRun
from .errors import NotSupported
from .execution import GPU_VMAP_WEIGHTS
from .footprint import Footprint
from .likelihoods import Bernoulli, Categorical
from .linearised import LinearisedRun, output_moments, probit
from .model import BayesianModel
from .posteriors.delta import Delta
from .posteriors.dropout import Dropout
from .posteriors.gaussian import Gaussian
from .posteriors.posterior import Posterior, Stratum
from .predictive import Predictive

MEMORY = 2 * 1024**3  # bytes that a prediction may hold at a time, unless told otherwise
CPU_CACHE = 40 * 1024**2  # bytes of activations at a time on a CPU: larger blocks leave the cache, smaller ones wait
NETWORK = 0x6E6574  # the stream of a prediction's seed for networks that draw
DRAWING = 8  # sets of weights alive for each one drawn: counters, words, uniforms, normals, the vector and its parts
LIVE = 4  # tensors of the largest size alive at once in a forward pass: a residual, input, output, workspace


def predict(
    posterior: Posterior,
    x: Any,
    num_samples: int,
    seed: int,
    tolerance: float | None,
    max_samples: int,
    memory: int | None,
    linearised: bool | None = None,
    link: str | None = None,
) -> Predictive:
    """The Bayesian model average at x; see `Posterior.predict`."""
    model = posterior.model
    if not isinstance(model, BayesianModel):
        raise NotSupported(f"a posterior of a {type(model).__name__} cannot predict; one of a BayesianModel can")
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"num_samples must be a positive integer, got {num_samples}")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    if link not in (None, "probit"):
        raise ValueError(f'link must be None or "probit", got {link!r}')
    if link is not None and not isinstance(model.likelihood, Bernoulli | Categorical):
        raise NotSupported(f"a {type(model.likelihood).__name__} has no probit link; Categorical and Bernoulli have")
    x = batches.as_tensors(tuple(x) if isinstance(x, list) else x, model.dtype)
    batches.check_dtype(x, model.dtype)
    if batches.length(x) == 0:
        raise ValueError("there is nothing to predict: x has no rows")
    batches.check_finite(x, "x")
    while True:
        predictive = _average(posterior, x, num_samples, seed, memory or MEMORY, linearised, link)
        if tolerance is None or float(predictive.mc_error.max()) <= tolerance:
            return predictive
        drawn = predictive.outputs.shape[0]
        if num_samples >= max_samples or drawn < num_samples:  # fewer than asked for: all stored draws are used
            way_out = "raise max_samples" if drawn >= num_samples else "these are all stored draws: keep more of them"
            warnings.warn(
                f"the Monte Carlo error is still {float(predictive.mc_error.max()):.3g} after {drawn} samples, above "
                f"the tolerance {tolerance}; {way_out}",
                stacklevel=3,
            )
            return predictive
        num_samples = min(2 * num_samples, max_samples)


def _average(
    posterior: Posterior,
    x: Any,
    num_samples: int,
    seed: int,
    memory: int,
    linearised: bool | None,
    link: str | None,
) -> Predictive:
    model: BayesianModel = posterior.model
    strata = posterior.strata(num_samples, seed)
    runs = [_way(posterior, stratum, linearised, link) for stratum in strata]
    home = pytree.tree_leaves(x)[0].device
    total, done = sum(len(s.indices) for s in strata), 0
    collected: Tensor | None = None
    noise: list[Weights] = []
    probs: Tensor | None = None
    for i, (stratum, run) in enumerate(zip(strata, runs, strict=True)):
        # Only a network that draws in eval mode notices: the same call gives the same numbers, global generators stay.
        with forked(stratum.seed, i, NETWORK, devices=[stratum.posterior.device]):
            outputs, own = _run(run, stratum, x, memory, total)
            if link is not None:
                share = _probit(stratum, outputs, x, memory, total).to(home)
                probs = share if probs is None else probs + share
        outputs = outputs.to(home)
        if collected is None:  # filled in place: joining parts at the end would hold everything twice
            collected = outputs if len(strata) == 1 else outputs.new_empty(total, *outputs.shape[1:])
        if len(strata) > 1:
            collected[done : done + len(outputs)] = outputs
        done += len(outputs)
        noise.append(own)
    assert collected is not None
    weights = torch.tensor([s.weight for s in strata for _ in s.indices], dtype=collected.dtype, device=home)
    owners = torch.tensor([i for i, s in enumerate(strata) for _ in s.indices], device=home)
    joined = {k: torch.cat([n[k] for n in noise]).to(home) for k in noise[0]}
    return Predictive(
        collected,
        model.likelihood,
        weights=weights,
        unknowns={k.removeprefix("likelihood."): v for k, v in joined.items() if k.startswith("likelihood.")},
        strata=owners,
        exact=all(s.exact for s in strata),
        probs=probs,
    )


def _way(
    posterior: Posterior, stratum: Stratum, linearised: bool | None, link: str | None
) -> SampledRun | LinearisedRun | DropoutRun:
    """How a stratum's draws run: as told, else as the posterior, or this component of it, does by default."""
    own = stratum.posterior
    if linearised is None:
        linearised = posterior.linearised_by_default or own.linearised_by_default
    if link is not None and not linearised:
        raise ValueError(f"link={link!r} is of the linearised network's outputs; add linearised=True")
    # A point has no deviations: the linearised network is the network.
    if linearised and not isinstance(own, Delta):
        return LinearisedRun(stratum)
    return DropoutRun(stratum) if isinstance(own, Dropout) else SampledRun(stratum)


def _probit(stratum: Stratum, outputs: Tensor, x: Any, memory: int, total: int) -> Tensor:
    """The share of one stratum in the closed-form class probabilities."""
    own, weight = stratum.posterior, stratum.weight * len(stratum.indices)
    if not isinstance(own, Gaussian):
        return weight * probit(own.model.likelihood, outputs[0], torch.zeros_like(outputs[0]))
    room = memory - _held(outputs[0].numel() * outputs.element_size(), total, len(outputs))
    budget = min(room, CPU_CACHE) if own.device.type == "cpu" else room
    return weight * probit(own.model.likelihood, *output_moments(own, x, budget))


class SampledRun:
    """Every draw runs the network with its own weights."""

    activations = 1

    def __init__(self, stratum: Stratum):
        self.stratum, self.model = stratum, stratum.posterior.model
        self.bank = _bank(stratum, [0], 0)
        self.vectorised = _vectorises(self.model, stratum.posterior.device)

    @property
    def centre(self) -> Weights:
        """Some weights, to see what a pass takes."""
        return tree.to(self.model.start, self.stratum.posterior.device)

    def draw(self, low: int, high: int) -> tuple[Weights, Weights]:
        """Draws low to high of all unknowns and of the noise parameters among them, unconstrained."""
        params = self.stratum.posterior.draw(self.stratum.indices[low:high], self.stratum.seed)
        return params, {k: v for k, v in params.items() if k in self.model.belief.noise}

    def forward(self, params: Weights, low: int, high: int, inputs: Any, answer: Tensor) -> None:
        """Fill `answer` (draws, examples, ...)."""
        bank = _bank(self.stratum, range(low, high))
        if high - low > 1 and self.vectorised:
            dims = (0, None if bank is None else 0)
            call = torch.vmap(lambda p, b: _one(self.model, p, b, inputs), in_dims=dims, randomness="different")
            # A network that branches on its weights, or whose kernels vmap would loop over, runs one draw at a time.
            with contextlib.suppress(RuntimeError, UserWarning), slow_vmap_is_an_error():
                answer.copy_(call(params, bank))
                return
        for i in range(high - low):
            own = None if bank is None else tree.unstack(bank, i)
            answer[i] = _one(self.model, tree.unstack(params, i), own, inputs)


def _run(
    run: SampledRun | LinearisedRun | DropoutRun, stratum: Stratum, x: Any, memory: int, total: int
) -> tuple[Tensor, Weights]:
    """Outputs (S, N, ...) of one stratum's draws, and their natural noise parameters."""
    model, device, examples, count = run.model, stratum.posterior.device, batches.length(x), len(stratum.indices)
    few = batches.place(batches.rows(x, slice(0, 1)), device)
    probe, peak = _measure(model, run.centre, run.bank, few)
    peak *= run.activations
    held = _held(examples * probe.numel() * probe.element_size(), total, count)
    if held > memory:
        raise ValueError(
            f"the outputs of {total} draws for {examples} inputs take {held:,} bytes, more than the budget of {memory:,}; "
            "predict fewer inputs at a time, draw fewer samples or raise memory="
        )
    drawn = _draws(run, stratum, peak, memory - held)
    if drawn < 1:
        needed = held + max(_copies(stratum) * tree.num_bytes(model.start), tree.num_bytes(model.start) + LIVE * peak)
        raise ValueError(
            f"the outputs, one draw of the weights and one input's activations take {needed:,} bytes, more than the "
            f"budget of {memory:,}; predict fewer inputs at a time, draw fewer samples or raise memory="
        )
    together = drawn if run.vectorised else 1
    sets = 1 if isinstance(run, DropoutRun) else drawn
    rows = _rows(device, peak * together, examples, memory - held - sets * tree.num_bytes(model.start))
    answer = torch.empty((count, examples, *probe.shape[1:]), dtype=probe.dtype, device=device)
    noise: list[Weights] = []
    with torch.no_grad():
        for low in range(0, count, drawn):
            high = min(low + drawn, count)
            params: Weights = {}  # the last ones go before new ones come
            params, own_noise = run.draw(low, high)
            noise.append(model.constrain(own_noise))
            for start in range(0, examples, rows):
                inputs = batches.place(batches.rows(x, slice(start, start + rows)), device)
                run.forward(params, low, high, inputs, answer[low:high, start : start + rows])
    return answer, {k: torch.cat([n[k] for n in noise]) for k in noise[0]}


def _one(model: BayesianModel, params: Weights, bank: Weights | None, inputs: Any) -> Tensor:
    return model.bound(buffers=bank, training=False).outputs(params, inputs)


def _bank(stratum: Stratum, places: Sequence[int], index: int | None = None) -> Weights | None:
    """Norm statistics of the draws at `places` of a stratum."""
    posterior = stratum.posterior
    if posterior.linearised_by_default and posterior.mean_bank is not None:
        # A curvature belongs to the statistics at which it was taken, and so does a draw from it.
        rows = {k: v.expand(len(places), *v.shape) for k, v in posterior.mean_bank.items()}
        return rows if index is None else tree.unstack(rows, index)
    if not posterior.model.network.statistics and posterior.bank is None:
        return None
    wanted = [stratum.indices[i] for i in places]
    have = 0 if posterior.bank is None else tree.leading_axis(posterior.bank)
    if posterior.bank is None or max(wanted) >= have or not (posterior.finite or stratum.seed == posterior.bank_seed):
        raise ValueError(
            f"this network's norm layers need statistics for every draw, and {have} draws of the default seed have them; "
            "gather more with posterior.refresh(training_data, num_samples=..., seed=...)"
        )
    picks = torch.as_tensor(wanted, device=posterior.device)
    rows = {k: v[picks] for k, v in posterior.bank.items()}
    return rows if index is None else tree.unstack(rows, index)


def _measure(model: BayesianModel, params: Weights, bank: Weights | None, inputs: Any) -> tuple[Tensor, int]:
    """The output of one example, and the bytes of its largest activation."""
    with batches.shapes_named(inputs), torch.no_grad(), Footprint() as footprint:
        out = _one(model, params, bank, inputs)
    if out.dim() == 0 or out.shape[0] != batches.length(inputs):
        raise ValueError(
            f"the network must keep the examples' axis first, got outputs {tuple(out.shape)} for one input"
        )
    taken = sum(t.numel() * t.element_size() for t in pytree.tree_leaves(inputs))
    return out, max(footprint.largest, taken)


def _vectorises(model: BayesianModel, device: torch.device) -> bool:
    """Whether several draws at once are faster than one after another."""
    if device.type == "cuda":
        return size(model.start) <= GPU_VMAP_WEIGHTS  # a larger network fills the machine alone
    # Convolutions with a kernel per draw have no fast library call on a CPU.
    return not model.network.library_bound


def _held(one: int, total: int, count: int) -> int:
    """Bytes of all draws' outputs, given those of one; a part of several is copied to its place among the rest."""
    return one * (total if count == total else total + count)


def _copies(stratum: Stratum) -> int:
    return 2 if stratum.posterior.finite else DRAWING


def _draws(run: SampledRun | LinearisedRun | DropoutRun, stratum: Stratum, peak: int, memory: int) -> int:
    """How many draws to make (and, where they are vectorised, to run) at a time."""
    if isinstance(run, DropoutRun):  # a draw is masks, and masks are activations
        return min(len(stratum.indices), memory // (LIVE * peak))
    weights, count = tree.num_bytes(run.model.start), len(stratum.indices)
    while_drawing = memory // (_copies(stratum) * weights)
    if run.vectorised:
        return min(count, while_drawing, memory // (weights + LIVE * peak))
    return min(count, while_drawing, (memory - LIVE * peak) // weights)


def _rows(device: torch.device, peak: int, examples: int, memory: int) -> int:
    """How many inputs to run at a time."""
    budget = min(memory // 2, CPU_CACHE) if device.type == "cpu" else memory  # half: draws and joining need room too
    return max(1, min(examples, budget // max(1, LIVE * peak)))
