"""What is believed of all unknowns before the data: their density, their natural values, and draws of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import biject_to

from ..weights.algebra import Weights
from ..weights.network import Network
from ..weights.rng import generator
from .prior_groups import PriorGroup, group
from .priors.scaled import Place
from .unknowns import unknowns

PRIOR = 0x7072696F72  # the stream of a seed that draws from the prior
# Their weights have inputs along the first axis, all others along the second.
INPUTS_FIRST = (nn.Embedding, nn.EmbeddingBag, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Belief:
    """The prior of a model's unknowns.

    Attributes:
        groups: Which prior covers which weights.
        hyperpriors: Of unknown scales and noises, by full name.
        start: Unconstrained values where a run starts: the network's own weights, and hyperpriors' own start values.
    """

    def __init__(self, prior: Any, likelihood: Any, network: Network, names: list[str]):
        noise = {f"likelihood.{k}": h for k, h in unknowns(likelihood).items()}
        self.names, self.noise = list(names), list(noise)
        self.groups = group(prior, _places(network, names), noise)
        self.hyperpriors: dict[str, Any] = {**noise, **{k: h for g in self.groups for k, h in g.unknowns().items()}}
        joint = {n for g in self.groups if g.joint for n in g.names}
        self.free = {k: h for k, h in self.hyperpriors.items() if k not in joint}
        self.transforms = {k: biject_to(h.constraint) for k, h in self.hyperpriors.items()}
        self.non_centred: dict[str, PriorGroup] = {n: g for g in self.groups if g.non_centred for n in g.names}
        scales = {s for n, g in self.non_centred.items() for s in g.scales_of(n)}
        self.output_names = [*names, *(k for k in self.hyperpriors if k in scales)]
        self._placed: dict[torch.device, Any] = {}
        self.start = self._start(network)

    def _start(self, network: Network) -> Weights:
        like = network.parameters[self.names[0]]
        shapes = {k: s for g in self.groups for k, s in g.shapes().items()}
        natural = {k: network.parameters[k] for k in self.names}
        for k, h in self.hyperpriors.items():
            natural[k] = torch.full(shapes.get(k, ()), float(h.start), dtype=like.dtype, device=like.device)
        return self.unconstrain(natural)

    # --- natural values ---

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values of all unknowns or some; leading axes are kept."""
        natural = {k: self.transforms[k](v) if k in self.transforms else v for k, v in params.items()}
        for k, g in self.non_centred.items():
            if k in natural:
                natural[k] = natural[k] * g.scale(k, self._with_scales(k, g, natural))
        return natural

    def unconstrain(self, natural: Mapping[str, Tensor]) -> Weights:
        """The inverse of `constrain`."""
        params = {k: self.transforms[k].inv(v) if k in self.transforms else v for k, v in natural.items()}
        for k, g in self.non_centred.items():
            if k in params:
                params[k] = natural[k] / g.scale(k, self._with_scales(k, g, natural))
        return params

    def weights(self, params: Mapping[str, Tensor]) -> Weights:
        """The network's weights as it takes them."""
        if not self.non_centred:
            return {k: params[k] for k in self.names}
        natural = self.constrain({k: params[k] for k in self.output_names if k in params})
        return {k: natural[k] for k in self.names}

    def _with_scales(self, name: str, g: PriorGroup, natural: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        missing = [s for s in g.scales_of(name) if s not in natural]
        if missing:
            raise ValueError(f"{name} is {missing[0]} times what params hold, so that must be given, too")
        return natural

    # --- densities ---

    def log_params(self, params: Mapping[str, Tensor], natural: Mapping[str, Tensor]) -> Tensor:
        """log p of what params hold for weights (of z where that is not w), and of the natural hyperparameters."""
        total: Any = 0.0
        for k, hyperprior in self.free.items():
            total = total + hyperprior.log_prob(natural[k]).sum()
        for g in self.groups:
            if g.joint:
                prior = self.posterior_on(next(iter(params.values())).device, g.prior)
                total = total + prior.log_prob({k: params[k] for k in g.names})
                continue
            for name in g.names:
                total = total + g.density(name, natural).log_prob(params[name]).sum()
        return total

    def log_scales(self, natural: Mapping[str, Tensor]) -> Tensor | float:
        """log |∂w / ∂z|, summed over all weights of which params hold z."""
        total: Tensor | float = 0.0
        for k, g in self.non_centred.items():
            total = total + g.log_scale(k, natural, self.start[k].numel())
        return total

    def log_transforms(self, params: Mapping[str, Tensor], natural: Mapping[str, Tensor]) -> Tensor | float:
        """log |∂ natural / ∂ unconstrained| of the hyperparameters."""
        total: Tensor | float = 0.0
        for k in self.free:
            total = total + self.transforms[k].log_abs_det_jacobian(params[k], natural[k]).sum()
        return total

    def hyperparameters(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values of the unknowns that are no weights: all that densities need."""
        return {k: self.transforms[k](params[k]) for k in self.hyperpriors}

    # --- draws ---

    def sample(self, n: int, seed: int) -> Weights:
        """n draws of all unknowns, unconstrained, with a leading axis."""
        rng = generator(seed, PRIOR)
        drawn: Weights = {}
        natural: Weights = {}
        for k, hyperprior in self.free.items():
            like = self.start[k]
            natural[k] = hyperprior.sample((n, *like.shape), rng, dtype=like.dtype, device=like.device)
            drawn[k] = self.transforms[k].inv(natural[k])
        for g in self.groups:
            if g.joint:
                drawn.update(g.prior.sample(n, seed=seed))
                continue
            own = list(g.unknowns())
            for name in g.names:
                rows = [
                    g.density(name, {k: natural[k][i] for k in own}).sample(self.start[name], rng) for i in range(n)
                ]
                drawn[name] = torch.stack(rows)
        return {k: drawn[k] for k in self.start}

    # --- constants ---

    def place_constants(self, device: torch.device) -> None:
        """A posterior that is the prior, and the roots of correlated priors."""
        for g in self.groups:
            if g.joint:
                self.posterior_on(device, g.prior)
                continue
            prior = g.prior.standard if g.factors else g.prior
            if not getattr(prior, "elementwise", True):  # it keeps what its first call makes
                for name in g.names:
                    prior.log_prob(torch.zeros_like(self.start[name], device=device))

    def posterior_on(self, device: torch.device, prior: Any) -> Any:
        """Yesterday's posterior where today's weights are: a loaded one is on the CPU."""
        if device not in self._placed:
            self._placed[device] = prior if prior.device == device else prior.to(device)
        return self._placed[device]


def _places(network: Network, names: list[str]) -> dict[str, Place]:
    modules = dict(network.home.named_modules())
    return {
        k: Place(tuple(network.parameters[k].shape), isinstance(modules.get(k.rpartition(".")[0]), INPUTS_FIRST))
        for k in names
    }
