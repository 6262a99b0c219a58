"""Predict with the network linearised in its weights: f(x; w̄) + J(x) (w − w̄), w a draw.

For a Gaussian over weights this is the model that a Gauss-Newton curvature belongs to (Immer, Korzepa & Bauer, 2021).
Directional derivatives are taken forward, a block of draws beside one pass of the network; no Jacobian is built. Norm
statistics belong to w̄ and do not vary.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ..weights import tree
from ..weights.algebra import Weights, from_vector, slow_vmap_is_an_error, to_vector
from . import batch as batches
from .errors import NotSupported
from .footprint import Footprint
from .likelihoods.bernoulli import Bernoulli
from .model import BayesianModel
from .posteriors.gaussian import Gaussian
from .posteriors.posterior import Posterior, Stratum

log = logging.getLogger("plausible")

_backward_only: weakref.WeakSet = weakref.WeakSet()  # networks with an operation that has no forward-mode rule


class LinearisedRun:
    """One stratum's draws through the linearised network; what `prediction` asks of a way to run."""

    vectorised = True
    activations = 2  # sets of activations that one draw keeps alive: a tangent and what it is a tangent at

    def __init__(self, stratum: Stratum):
        posterior = stratum.posterior
        if not isinstance(posterior, Gaussian):
            raise NotSupported(
                f"{type(posterior).__name__} is no Gaussian, so there is no mean to linearise the network at; Delta, "
                "Diagonal, LowRank, Kronecker, Full and mixtures of them predict with linearised=True"
            )
        self.stratum, self.posterior = stratum, posterior
        self.model: BayesianModel = posterior.model
        self.centre, self.bank = posterior.mean, statistics_at_the_mean(posterior)

    def draw(self, low: int, high: int) -> tuple[Weights, Weights]:
        """Deviations from the mean of what the outputs depend on, and the unconstrained noise, of draws low to high."""
        indices = self.stratum.indices[low:high]
        deviations = from_vector(self.posterior.deviations(indices, self.stratum.seed), self.posterior.free)
        points = {k: self.centre[k].expand(len(indices), *self.centre[k].shape) for k in self.model.belief.noise}
        noise = {k: p + deviations[k] if k in deviations else p for k, p in points.items()}
        return {k: d for k, d in deviations.items() if k in self.model.output_names}, noise

    def forward(self, deviations: Weights, low: int, high: int, inputs: Any, answer: Tensor) -> None:
        """Fill `answer` (draws, examples, ...)."""
        weights = {k: self.centre[k] for k in deviations}
        function = network_at(self.model, self.bank, inputs, _others(self.model, self.centre, weights))

        if not weights:  # only hyperparameters vary
            answer.copy_(function({}).expand_as(answer))
            return

        def one(deviation: Weights) -> Tensor:
            both = torch.func.jvp(function, (weights,), (deviation,))
            return both[0] + both[1]

        network = self.model.network
        with kernels_with_derivatives():
            if network not in _backward_only:
                # A network that branches on its weights, or whose kernels vmap would loop over, takes a draw at a time.
                with contextlib.suppress(RuntimeError, UserWarning), slow_vmap_is_an_error():
                    answer.copy_(torch.vmap(one, randomness="different")(deviations))
                    return
                try:
                    for i in range(high - low):
                        answer[i] = one(tree.unstack(deviations, i))
                    return
                except RuntimeError as error:  # NotImplementedError is one, too
                    _backward_only.add(network)
                    reason = str(error).strip().splitlines()[0]
                    log.warning("linearised prediction differentiates twice backwards, one draw at a time: %s", reason)
            _by_two_backward_passes(function, weights, deviations, answer)


def network_at(
    model: BayesianModel, bank: Weights | None, inputs: Any, others: Weights | None = None
) -> Callable[[Weights], Tensor]:
    """The network's outputs in eval mode as a function of its weights, apart from `others`, which stay."""
    bound = model.bound(buffers=bank, training=False)
    return lambda weights: bound.outputs({**(others or {}), **weights}, inputs)


def statistics_at_the_mean(posterior: Posterior) -> Weights | None:
    """The buffers that belong to the mean: its own norm statistics, and what all draws have in common."""
    own, bank = posterior.mean_bank or {}, posterior.bank or {}
    # One row alone is the first draw's; several equal ones are everybody's, such as those of a network in eval mode.
    shared = {k: v[0] for k, v in bank.items() if k not in own and len(v) > 1 and bool((v == v[:1]).all())}
    missing = [k for k in posterior.model.network.statistics if k not in own and k not in shared]
    if missing:
        raise ValueError(
            f"this network's norm layers need statistics for the mean, which {missing[0]} lacks; gather them with "
            "posterior.refresh(training_data)"
        )
    return {**shared, **own} or None


@contextlib.contextmanager
def kernels_with_derivatives() -> Iterator[None]:
    """Attention by plain matrix products: the fused kernels have no forward derivative, nor a second one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # torch scripts some rules of its own when a process first differentiates forward.
            warnings.filterwarnings("ignore", message=r".*torch\.jit", category=DeprecationWarning)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _by_two_backward_passes(
    function: Callable[[Weights], Tensor], weights: Weights, deviations: Weights, answer: Tensor
) -> None:
    """J v as the derivative in u of (Jᵀ u) · v, by plain autograd, which every network that can be trained knows."""
    leaves = {k: w.detach().requires_grad_() for k, w in weights.items()}
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers go back only once
        value = function(leaves)
        u = torch.zeros_like(value, requires_grad=True)
        pulled = torch.autograd.grad(
            value, list(leaves.values()), u, create_graph=True, allow_unused=True, materialize_grads=True
        )
        used = [(k, p) for k, p in zip(leaves, pulled, strict=True) if p.requires_grad]
        for i in range(len(answer)):
            along = [deviations[k][i] for k, _ in used]
            (slope,) = torch.autograd.grad(
                [p for _, p in used], u, along, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            answer[i] = (value + slope).detach()


# --- the exact law of the linearised outputs ---


def probit(likelihood: Any, mean: Tensor, variance: Tensor) -> Tensor:
    """Class probabilities averaged over normal logits, by MacKay's (1992) stand-in for the logistic: a probit.

    softmax(f̄ / √(1 + π/8 · var f)), or the sigmoid of the same for yes or no.
    """
    logits = mean / (1 + math.pi / 8 * variance).sqrt()
    return torch.sigmoid(logits) if isinstance(likelihood, Bernoulli) else torch.softmax(logits, 1)


def output_moments(posterior: Gaussian, x: Any, memory: int) -> tuple[Tensor, Tensor]:
    """Mean f(x; w̄) and variance diag(J Σ Jᵀ) of the linearised outputs, in their shape (N, ...).

    With Σ = L Lᵀ a variance is ‖Lᵀ Jᵀ e‖²: a backward pass for every output of every example, in blocks that `memory`
    holds. In eval mode an example's outputs do not depend on the others.
    """
    model: BayesianModel = posterior.model
    bank, device, examples = statistics_at_the_mean(posterior), posterior.device, batches.length(x)
    weights = {k: w for k, w in posterior.free.items() if k in model.output_names}
    others = _others(model, posterior.mean, weights)

    def means(inputs: Any) -> Tensor:
        with torch.no_grad():
            return network_at(model, bank, inputs, others)(weights)

    def variances(inputs: Any, outputs: range) -> Tensor:
        return posterior.unscatter(_slopes(posterior, weights, others, bank, inputs, outputs)).square().sum(-1)

    def some(low: int, high: int) -> Any:
        return batches.place(batches.rows(x, slice(low, high)), device)

    with kernels_with_derivatives():
        with Footprint() as one:  # of one output of one example, everything it makes counted as if it were kept
            probe = means(some(0, 1))
            variances(some(0, 1), range(1))
        width, pairs = probe.numel(), max(1, memory // one.total)
        columns = min(width, pairs)
        rows = min(examples, pairs // columns)
        mean = probe.new_empty(examples, *probe.shape[1:])
        variance = probe.new_empty(examples, width)
        for low in range(0, examples, rows):
            inputs = some(low, low + rows)
            mean[low : low + rows] = means(inputs)
            for left in range(0, width, columns):
                right = min(left + columns, width)
                variance[low : low + rows, left:right] = variances(inputs, range(left, right))
    return mean, variance.reshape(mean.shape)


def _others(model: BayesianModel, mean: Weights, weights: Weights) -> Weights:
    """What the outputs depend on and does not vary."""
    return {k: mean[k] for k in model.output_names if k not in weights}


def _slopes(
    posterior: Gaussian, weights: Weights, others: Weights, bank: Weights | None, inputs: Any, outputs: range
) -> Tensor:
    """Gradients of some outputs of every example in all unknowns that vary, (examples, outputs, P)."""
    model, size = posterior.model, batches.length(inputs)

    def one_example(own: Any) -> Weights:
        function = network_at(model, bank, pytree.tree_map(lambda t: t.unsqueeze(0), own), others)
        linear = torch.func.vjp(lambda w: function(w).flatten()[outputs.start : outputs.stop], weights)
        return torch.vmap(linear[1])(torch.eye(len(outputs), dtype=linear[0].dtype, device=linear[0].device))[0]

    try:
        with slow_vmap_is_an_error():
            slopes = torch.vmap(one_example, randomness="different")(inputs)
    except (RuntimeError, UserWarning):
        each = [
            _slopes_of_one(network_at(model, bank, batches.rows(inputs, slice(i, i + 1)), others), weights, outputs)
            for i in range(size)
        ]
        slopes = tree.stack(each)
    shape = (size, len(outputs))
    full = {k: slopes[k] if k in slopes else w.new_zeros(*shape, *w.shape) for k, w in posterior.free.items()}
    return to_vector(full, 2)


def _slopes_of_one(function: Callable[[Weights], Tensor], weights: Weights, outputs: range) -> Weights:
    """The same of one example by plain autograd."""
    leaves = {k: w.detach().requires_grad_() for k, w in weights.items()}
    with torch.enable_grad():
        value = function(leaves).flatten()
        rows = [
            torch.autograd.grad(
                value[c], list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for c in outputs
        ]
    return {k: torch.stack(parts) for k, *parts in zip(leaves, *rows, strict=True)}
