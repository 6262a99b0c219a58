"""A network, a likelihood and a prior: one log joint, on one scale."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..weights.algebra import Weights, under_vmap
from ..weights.network import Network
from ..weights.rng import Keys
from . import batch as batches
from .belief import Belief
from .chunks import Chunks
from .normal_prior import FixedNormal
from .prior_groups import Patterns, choose
from .priors import Normal
from .target import Batch, Target
from .unknowns import bind

PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
# float16 holds nothing above 65,504, and whole-data slopes are N / B times those of a mean loss: differentiate at this
# multiple of the mean loss, small enough for float16's largest number and large enough for its smallest.
FP16_LOSS_SCALE = 1024.0
AROUND = 1 << 16  # the call number from which `around` draws, past anything the network's own dropout draws


class BayesianModel(Target):
    """What is believed about a network before the data: p(y | x, w) p(w).

    The unknowns are one dictionary: the network's weights under their own names, `likelihood.scale` and the like for
    unknown noise, `prior.scale` and the like for unknown prior scales. All are unconstrained, and for priors with unknown
    scales s that are kept non-centred a weight's entry is z = w / s; `constrain` gives natural values.

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
    # Bound by `fit` for methods that look for a highest point: of the density of w, also where params hold z = w / s. That of
    # z would depend on how the model is written, and prefers huge scales.
    seeks_mode = False
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
        self.belief = Belief(prior, self.likelihood, self.network, self.weight_names)
        self.groups, self.hyperpriors = self.belief.groups, self.belief.hyperpriors
        self._transforms, self._start = self.belief.transforms, self.belief.start
        self._scored = not self.hyperpriors and all(
            not g.joint and getattr(g.prior, "score", None) is not None for g in self.groups
        )
        self._normal = FixedNormal.of(self.groups, self._start, self.weight_names) if self._scored else None

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
        start = self.belief.hyperparameters(params)
        params = self.belief.unconstrain({**start, **{k: fresh[k] for k in self.weight_names}})
        lost = [k for k in self.random_valued(missed)]
        if lost:
            drawn = self.sample_prior(1, seed=seed)
            params.update({k: drawn[k][0] for k in lost})
        return {k: params[k] for k in self._start}

    def random_valued(self, names: list[str] | None = None) -> list[str]:
        """Random weights that no `reset_parameters` reaches and that are not constant (as zeros or ones would be)."""
        if names is None:
            _, names = self.network.reinitialised(0)
        values = self.network.parameters
        return [k for k in names if k in self.weight_names and bool((values[k] != values[k].flatten()[:1].sum()).any())]

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values: scales become positive, weights are multiplied by what they are multiples of."""
        return self.belief.constrain(params)

    def unconstrain(self, natural: Mapping[str, Tensor]) -> Weights:
        """The inverse of `constrain`."""
        return self.belief.unconstrain(natural)

    def log_jacobian(self, params: Mapping[str, Tensor]) -> Tensor | float:
        """log |∂ natural / ∂ unconstrained|, summed."""
        natural = self.belief.hyperparameters(params)
        return self.belief.log_transforms(params, natural) + self.belief.log_scales(natural)

    def natural_weights(self, params: Mapping[str, Tensor]) -> Weights:
        """The network's random weights as it takes them; `params` may lack what has nothing to do with them."""
        return self.belief.weights(params)

    @property
    def output_names(self) -> list[str]:
        """The unknowns that the network's outputs depend on: its weights, and scales that they are multiples of."""
        return self.belief.output_names

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's weights."""
        return self._start[self.weight_names[0]].dtype

    # --- the log joint ---

    def _bound_likelihood(self, natural: Mapping[str, Tensor]) -> Any:
        values = {k.removeprefix("likelihood."): v for k, v in natural.items()}
        return bind(self.likelihood, values) if values else self.likelihood

    def outputs(self, params: Mapping[str, Tensor], inputs: Any, key: Tensor | None = None) -> Tensor:
        """What the network says, in the mode and precision that this model is bound to."""
        weights = self.natural_weights(params)
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
        likelihood = self._bound_likelihood(self.constrain({k: params[k] for k in self.belief.noise}))
        values = likelihood.log_prob(self.outputs(params, inputs, key), targets)
        return values if weights is None else values * weights

    def log_prior(self, params: Mapping[str, Tensor]) -> Tensor:
        """log p(w) of the natural values, hyperpriors included, the Jacobian not."""
        self._check_names(params)
        natural = self.belief.hyperparameters(params)
        return self.belief.log_params(params, natural) - self.belief.log_scales(natural)

    def _tempered_prior(self, params: Mapping[str, Tensor]) -> Tensor:
        """log p(w) / T + log |Jacobian|. Where params hold z, Σ log s is in both with opposite signs: added up by hand."""
        natural = self.belief.hyperparameters(params)
        value = self.belief.log_params(params, natural) / self.temperature
        share = (0.0 if self.seeks_mode else 1.0) - 1.0 / self.temperature
        if share != 0.0 and self.belief.non_centred:
            value = value + share * self.belief.log_scales(natural)
        return value + self.belief.log_transforms(params, natural)

    def _read(self, params: Mapping[str, Tensor], batch: Any) -> tuple[Batch, float | Tensor]:
        inputs, targets, weights = batches.split(batch, self.batch_rule)
        device = next(iter(params.values())).device
        inputs, targets = batches.place(batches.as_tensors((inputs, targets), self.dtype), device)
        if weights is not None:
            weights = batches.one_for_each(weights, batches.length(inputs)).to(device)
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
        return likelihood / self.temperature + self._tempered_prior(params)

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
        if self._scored or self.prior_counted:
            return value
        return value + self._tempered_prior(params)

    def add_remainder(self, value: Tensor, params: Mapping[str, Tensor], slopes: Weights) -> tuple[Tensor, Weights]:
        """Add the log prior and its score, where every prior has a formula for it."""
        if not self._scored:
            return value, slopes
        if self._normal is not None and not under_vmap():
            return self._normal.add(value, params, slopes, self.temperature)
        total: Any = 0.0
        for g in self.groups:
            for k in g.names:
                total = total + g.prior.log_prob(params[k]).sum()
                slopes[k] = slopes[k] + g.prior.score(params[k]) / self.temperature
        return value + total / self.temperature, slopes

    def place_constants(self, device: torch.device) -> None:
        """The precisions of fixed normal priors, and what other priors keep."""
        self.belief.place_constants(device)
        if self._normal is not None:
            self._normal.on(torch.empty(0, dtype=self.dtype, device=device))

    def prior_slope(self, params: Mapping[str, Tensor]) -> Weights:
        """The gradient of everything in the log joint but the likelihood."""
        if self._scored:
            zeros = {k: torch.zeros_like(w) for k, w in params.items()}
            return self.add_remainder(torch.zeros_like(next(iter(params.values())).sum()), params, zeros)[1]
        return torch.func.grad(self._tempered_prior)(dict(params))

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
        return self.belief.sample(n, seed)

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
    return isinstance(batch, InternalBatch | Chunks)
