"""A network, a likelihood and a prior: one log joint, on one scale."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import biject_to

from ..weights.algebra import Weights, under_vmap
from ..weights.network import Network
from ..weights.rng import Keys, generator
from . import batch as batches
from .prior_groups import Patterns, choose, group
from .priors import Normal
from .target import Batch, Target
from .unknowns import bind, unknowns

PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
# float16 holds nothing above 65,504, and whole-data slopes are N / B times those of a mean loss: differentiate at this
# multiple of the mean loss, small enough for float16's largest number and large enough for its smallest.
FP16_LOSS_SCALE = 1024.0
AROUND = 1 << 16  # the call number from which `around` draws, past anything the network's own dropout draws


class BayesianModel(Target):
    """What is believed about a network before the data: p(y | x, w) p(w).

    The unknowns are one dictionary: the network's weights under their own names, `likelihood.scale` and the like for
    unknown noise, `prior.scale` for unknown prior scales. All are unconstrained; `constrain` gives natural values.

    Args:
        network: Any module. It is copied, never modified.
        likelihood: How targets scatter around the network's outputs; one of `pl.likelihoods`, or any object with
            `log_prob(outputs, y)` and `distribution(outputs)`.
        prior: One of `pl.priors`, a dictionary from name patterns to priors (the first match wins), or a posterior.
        parameters: Glob(s) or a predicate: which weights are random. The rest keep their values.
        temperature: T in (log likelihood + log prior) / T.
        batch: How to read (inputs, targets) or (inputs, targets, weights) out of an unusual batch.
    """

    training = False  # bound by `fit`: which mode the network runs in
    precision: str | None = None  # bound by `fit`
    buffers: Mapping[str, Tensor] | None = None  # bound by whoever has statistics that belong to the weights
    # Bound by methods that change what layers do (drop inputs, add noise to outputs): called with the weights of a pass and its
    # keys, gives the context, a `TorchFunctionMode`, that the pass runs in.
    around: Callable[[Weights, Keys | None], AbstractContextManager[Any]] | None = None

    def __init__(
        self,
        network: nn.Module,
        likelihood: Any,
        prior: Any = Normal(scale=1.0),  # noqa: B008 - frozen
        parameters: Patterns = "*",
        temperature: float = 1.0,
        batch: Callable[[Any], Any] | None = None,
    ):
        if not isinstance(network, nn.Module):
            raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
        for duty in ("log_prob", "distribution"):
            if not callable(getattr(likelihood, duty, None)):
                raise TypeError(f"a likelihood has log_prob(outputs, y) and distribution(outputs), got {likelihood!r}")
        if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        for name in ("likelihood", "prior"):
            if name in dict(network.named_children()):
                raise ValueError(f"a submodule called {name!r} would clash with the unknowns' names; rename it")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in network.parameters()):
            raise ValueError("the network has lazy layers without shapes yet; run one forward pass through it first")
        self.network = Network(network)
        self.source = network  # the user's own object, kept for its class and configuration only
        self.likelihood, self.prior, self.parameters, self.temperature = (
            likelihood,
            prior,
            parameters,
            float(temperature),
        )
        self.batch_rule = batch
        trainable = [k for k in self.network.parameters if k in self.network.trainable]
        if not trainable:
            raise ValueError("the network has no weight with requires_grad=True, so nothing is unknown")
        self.weight_names = choose(trainable, parameters)
        self._take(prior)

    def with_prior(self, prior: Any) -> Self:
        """The same model with another prior."""
        new = self.bound(prior=prior)
        new._take(prior)
        return new

    def _take(self, prior: Any) -> None:
        noise = {f"likelihood.{k}": h for k, h in unknowns(self.likelihood).items()}
        self.groups = group(prior, self.weight_names, noise)
        self.hyperpriors = {**noise, **{k: h for g in self.groups for k, h in g.unknowns().items()}}
        joint = {n for g in self.groups if g.joint for n in g.names}
        self._free = {k: h for k, h in self.hyperpriors.items() if k not in joint}
        self._transforms = {k: biject_to(h.constraint) for k, h in self.hyperpriors.items()}
        self._scored = not self.hyperpriors and all(
            not g.joint and getattr(g.prior, "score", None) is not None for g in self.groups
        )
        self._start = {k: self.network.parameters[k] for k in self.weight_names}
        self._precisions = self._fixed_precisions()
        self._placed_precisions: dict[torch.device, tuple[Tensor, float]] = {}
        self._placed_posteriors: dict[torch.device, Any] = {}
        like = next(iter(self._start.values()))
        for k, h in self.hyperpriors.items():
            natural = torch.as_tensor(h.start, dtype=like.dtype, device=like.device)
            self._start[k] = self._transforms[k].inv(natural)

    def _fixed_precisions(self) -> dict[str, float] | None:
        """1 / scale² by weight, where all priors are normal with numbers for scales and all weights have one dtype."""
        found: dict[str, float] = {}
        if not self._scored or len({w.dtype for w in self._start.values()}) > 1:
            return None
        for g in self.groups:
            fixed = getattr(g.prior, "fixed_precision", None)
            for k in g.names:
                value = fixed(self._start[k].shape) if callable(fixed) else None
                if value is None:
                    return None
                found[k] = value
        return {k: found[k] for k in self.weight_names}

    # --- the unknowns ---

    @property
    def start(self) -> Weights:
        """The network's own weights, and where unknown scales start."""
        return self._start

    def init(self, seed: int | None = None) -> Weights:
        """Values to start from: the network's own (None), or each layer's `reset_parameters`, else a draw from the prior."""
        params = {k: v.clone() for k, v in self._start.items()}
        if seed is None:
            return params
        fresh, missed = self.network.reinitialised(seed)
        params.update({k: fresh[k] for k in self.weight_names})
        lost = [k for k in self.random_valued(missed)]
        if lost:
            drawn = self.sample_prior(1, seed=seed)
            params.update({k: drawn[k][0] for k in lost})
        return params

    def random_valued(self, names: list[str] | None = None) -> list[str]:
        """Random weights that no `reset_parameters` reaches and that are not constant (as zeros or ones would be)."""
        if names is None:
            _, names = self.network.reinitialised(0)
        values = self.network.parameters
        return [k for k in names if k in self.weight_names and bool((values[k] != values[k].flatten()[0]).any())]

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values: scales become positive, weights stay."""
        return {k: self._transforms[k](v) if k in self._transforms else v for k, v in params.items()}

    def log_jacobian(self, params: Mapping[str, Tensor]) -> Tensor | float:
        """log |∂ natural / ∂ unconstrained|, summed."""
        total: Tensor | float = 0.0
        for k in self._free:
            total = total + self._transforms[k].log_abs_det_jacobian(params[k], self._transforms[k](params[k])).sum()
        return total

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's weights."""
        return self._start[self.weight_names[0]].dtype

    # --- the log joint ---

    def _bound_likelihood(self, natural: Mapping[str, Tensor]) -> Any:
        values = {k.removeprefix("likelihood."): v for k, v in natural.items() if k.startswith("likelihood.")}
        return bind(self.likelihood, values) if values else self.likelihood

    def outputs(self, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None = None) -> Tensor:
        """What the network says, in the mode and precision that this model is bound to."""
        weights = {k: params[k] for k in self.weight_names}
        rng = None if key is None else Keys(key, key[0] * 0)
        dtype = PRECISIONS[self.precision]
        device = next(iter(weights.values())).device
        keys = None if rng is None else rng.later(AROUND)
        autocast = torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext()
        with autocast, self.around(weights, keys) if self.around is not None else nullcontext():
            out = self.network(
                weights, inputs, role="train" if self.training else "eval", rng=rng, buffers=self.buffers
            )
        if not isinstance(out, Tensor):
            raise TypeError(
                f"the network must return a tensor or an object with .logits, got {type(out).__name__}; "
                "wrap it in a module that returns the one output that the likelihood is about"
            )
        return out.float() if dtype is not None else out

    def _weighted_log_likelihoods(
        self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None = None
    ) -> Tensor:
        inputs, targets, weights = batch
        likelihood = self._bound_likelihood(self.constrain({k: params[k] for k in self.hyperpriors}))
        values = likelihood.log_prob(self.outputs(params, inputs, key), targets)
        return values if weights is None else values * weights

    def log_prior(self, params: Mapping[str, Tensor]) -> Tensor:
        """log p(w) of the natural values, hyperpriors included, the Jacobian not."""
        self._check_names(params)
        natural = self.constrain(params)
        total: Any = 0.0
        for k, hyperprior in self._free.items():
            total = total + hyperprior.log_prob(natural[k]).sum()
        for g in self.groups:
            if g.joint:
                prior = self._posterior_on(next(iter(params.values())).device, g.prior)
                total = total + prior.log_prob({k: params[k] for k in g.names})
                continue
            prior = bind(g.prior, {k.rpartition(".")[2]: natural[k] for k in g.unknowns()}) if g.unknowns() else g.prior
            for name in g.names:
                total = total + prior.log_prob(params[name]).sum()
        return total

    def _read(self, params: Mapping[str, Tensor], batch: Any) -> tuple[Batch, float | Tensor]:
        inputs, targets, weights = batches.split(batch, self.batch_rule)
        device = next(iter(params.values())).device
        inputs, targets = batches.place(batches.as_tensors((inputs, targets), self.dtype), device)
        if weights is not None:
            weights = batches.as_tensors(weights).to(device)
        return (inputs, targets, weights), batches.length(inputs) if weights is None else weights.sum()

    def log_likelihoods(self, params: Mapping[str, Tensor], batch: Any) -> Tensor:
        """log p(yᵢ | xᵢ, w), one per example, times its weight where the batch has weights."""
        self._check_names(params)
        return self._weighted_log_likelihoods(params, self._read(params, batch)[0])

    def log_likelihood(self, params: Mapping[str, Tensor], batch: Any) -> Tensor:
        """Σᵢ log p(yᵢ | xᵢ, w) over the batch."""
        return self.log_likelihoods(params, batch).sum()

    def log_joint(self, params: Mapping[str, Tensor], batch: Any, num_data: float | None = None) -> Tensor:
        """[N/B · Σᵢ log p(yᵢ | xᵢ, w) + log p(w)] / T + log |Jacobian|: an estimate on the scale of all N examples."""
        self._check_names(params)
        total = num_data if num_data is not None else self.num_data
        if total is None:
            raise ValueError("log_joint is on the scale of the whole data, so it must be told num_data=N")
        read, size = self._read(params, batch)
        likelihood = self._weighted_log_likelihoods(params, read).sum() * (total / size)
        return (likelihood + self.log_prior(params)) / self.temperature + self.log_jacobian(params)

    def slope(self, params: Mapping[str, Tensor], batch: Any, num_data: float | None = None) -> tuple[Tensor, Weights]:
        """The log joint and its gradient in every unknown."""
        if num_data is not None:
            return self.bound(num_data=num_data).slope(params, batch)
        if self.num_data is None:
            raise ValueError("a slope is on the scale of the whole data, so it must be told num_data=N")
        if not self.inline and not under_vmap() and not _is_internal(batch):
            self._check_names(params)
            (inputs, targets, weights), size = self._read(params, batch)
            if weights is None:
                like = next(iter(params.values()))
                weights = torch.full((int(size),), 1.0, dtype=like.dtype, device=like.device)
            batch = InternalBatch((inputs, targets, weights * (self.num_data / size)))
        return super().slope(params, batch)

    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """The tempered log likelihood of a batch whose weights sum to N, and the prior unless it has a score."""
        value = self._weighted_log_likelihoods(params, tuple(batch), key).sum()
        value = value / self.temperature if self.temperature != 1.0 else value
        if self._scored:
            return value
        return value + self.log_prior(params) / self.temperature + self.log_jacobian(params)

    def add_remainder(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """Add the log prior and its score, where every prior has a formula for it."""
        if not self._scored:
            return value, slopes
        if self._precisions is not None and not under_vmap():
            return self._add_normal_prior(value, params, slopes)
        total: Any = 0.0
        for g in self.groups:
            for k in g.names:
                total = total + g.prior.log_prob(params[k]).sum()
                slopes[k] = slopes[k] + g.prior.score(params[k]) / self.temperature
        return value + total / self.temperature, slopes

    def _add_normal_prior(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """Normal priors of fixed scales, for all weights in a few multi-tensor kernels and no pass to spare."""
        weights = [params[k] for k in self.weight_names]
        norms = torch.stack(torch._foreach_norm(weights))
        precisions, constant = self._precisions_on(norms)
        value = value + (constant - 0.5 * torch.dot(precisions, norms * norms)) / self.temperature
        pulls = [-p / self.temperature for p in self._precisions.values()]  # type: ignore[union-attr]
        own = [slopes[k] for k in self.weight_names]
        if len(set(pulls)) == 1:
            torch._foreach_add_(own, weights, alpha=pulls[0])
        else:
            torch._foreach_add_(own, torch._foreach_mul(weights, pulls))
        return value, slopes

    def place_constants(self, device: torch.device) -> None:
        """The precisions of fixed normal priors, and a posterior that is the prior."""
        for g in self.groups:
            if g.joint:
                self._posterior_on(device, g.prior)
        if self._precisions is not None:
            self._precisions_on(torch.empty(0, dtype=self.dtype, device=device))

    def _posterior_on(self, device: torch.device, prior: Any) -> Any:
        """Yesterday's posterior where today's weights are: a loaded one is on the CPU."""
        if device not in self._placed_posteriors:
            self._placed_posteriors[device] = prior if prior.device == device else prior.to(device)
        return self._placed_posteriors[device]

    def _precisions_on(self, like: Tensor) -> tuple[Tensor, float]:
        if like.device not in self._placed_precisions:
            assert self._precisions is not None
            constant = sum(
                0.5 * self._start[k].numel() * (math.log(p) - math.log(2 * math.pi))
                for k, p in self._precisions.items()
            )
            values = torch.tensor(list(self._precisions.values()), dtype=like.dtype, device=like.device)
            self._placed_precisions[like.device] = (values, constant)
        return self._placed_precisions[like.device]

    def prior_slope(self, params: Mapping[str, Tensor]) -> Weights:
        """The gradient of everything in the log joint but the likelihood."""
        if self._scored:
            zeros = {k: torch.zeros_like(w) for k, w in params.items()}
            return self.add_remainder(torch.zeros_like(next(iter(params.values())).sum()), params, zeros)[1]

        def rest(p: Mapping[str, Tensor]) -> Tensor:
            return self.log_prior(p) / self.temperature + self.log_jacobian(p)

        return torch.func.grad(rest)(dict(params))

    @property
    def gradient_scale(self) -> float:
        """What the objective is multiplied by while it is differentiated."""
        return FP16_LOSS_SCALE / self.num_data if self.precision == "fp16" and self.num_data else 1.0

    @property
    def needs_key(self) -> bool:
        """Whether a slope draws dropout masks."""
        return self.around is not None or self.training and bool(self.network.dropouts)

    def _check_names(self, params: Mapping[str, Tensor]) -> None:
        if params.keys() != self._start.keys():
            missing, strange = sorted(self._start.keys() - params.keys()), sorted(params.keys() - self._start.keys())
            raise ValueError(f"params must have this model's unknowns; missing {missing}, unknown {strange}")

    # --- before any data ---

    def sample_prior(self, n: int, seed: int = 0) -> Weights:
        """n draws of all unknowns (unconstrained) from the prior, with a leading axis n."""
        rng = generator(seed, 0x7072696F72)
        drawn: Weights = {}
        natural: Weights = {}
        for k, hyperprior in self._free.items():
            like = self._start[k]
            natural[k] = hyperprior.sample((n, *like.shape), rng, dtype=like.dtype, device=like.device)
            drawn[k] = self._transforms[k].inv(natural[k])
        for g in self.groups:
            if g.joint:
                drawn.update(g.prior.sample(n, seed=seed))
                continue
            for name in g.names:
                own = {k.rpartition(".")[2]: natural[k] for k in g.unknowns()}
                rows = [
                    bind(g.prior, {k: v[i] for k, v in own.items()}).sample(self._start[name], rng) for i in range(n)
                ]
                drawn[name] = torch.stack(rows)
        return {k: drawn[k] for k in self._start}

    def prior_predictive(self, x: Any, n: int = 64, seed: int = 0) -> Any:
        """What the prior alone predicts: the average over n draws of the weights."""
        from .posteriors.samples import Samples  # the one place where the model looks ahead

        return Samples(self, self.sample_prior(n, seed=seed)).predict(x, num_samples=n)

    def __deepcopy__(self, memo: dict[int, Any]) -> BayesianModel:
        return copy.copy(self)  # immutable, apart from what `bound` replaces


class InternalBatch(tuple):
    """(inputs, targets, weights) with tensors in place and weights that sum to N: made by the loop, trusted by `slope`."""

    __slots__ = ()


torch.utils._pytree.register_pytree_node(
    InternalBatch,
    lambda b: (list(b), None),
    lambda leaves, _: InternalBatch(leaves),
    serialized_type_name="plausible.Batch",
)


def _is_internal(batch: Any) -> bool:
    return isinstance(batch, InternalBatch)
