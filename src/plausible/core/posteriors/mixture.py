"""Several posteriors of one model, weighted: what ensembles, MultiSWAG and several chains are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ...weights import tree
from ...weights.algebra import Weights
from ...weights.rng import generator
from ..arviz import to_arviz
from ..collapse import with_collapsed_scales
from ..diagnostics import Diagnostics, of_chains, together
from ..errors import NotSupported
from ..evidence import Evidence
from ..target import Target
from .posterior import Posterior, Stratum
from .samples import Samples


class Mixture(Posterior):
    """Σₘ πₘ qₘ. Predictions are stratified: every component has its share of the draws."""

    def __init__(self, components: Sequence[Posterior], weights: Tensor | Sequence[float] | None = None):
        if not components:
            raise ValueError("a mixture needs at least one component")
        for c in components[1:]:
            if c.model.start.keys() != components[0].model.start.keys():
                raise ValueError("the components of a mixture must be posteriors of one model: their unknowns differ")
        count = len(components)
        # In float64, so that a third is a third to a float64 network too.
        shares = torch.ones(count).double() if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        if shares.shape != (count,) or bool((shares < 0).any()) or not bool(shares.sum() > 0):
            raise ValueError(f"a mixture of {count} needs {count} non-negative weights, got {shares.tolist()}")
        self.model = components[0].model
        self._components, self._shares = list(components), shares / shares.sum()

    def __repr__(self) -> str:
        return f"Mixture({len(self._components)} components, the first {self._components[0]!r})"

    @property
    def components(self) -> list[Posterior]:
        """The members."""
        return self._components

    @property
    def weights(self) -> Tensor:
        """The members' weights, which sum to one."""
        return self._shares

    @property
    def mean(self) -> Weights:
        """Refused: weights of different modes do not average to a sensible network."""
        raise NotSupported("the mean of a mixture is no member of it; see .components, each of which has its own .mean")

    @property
    def device(self) -> torch.device:
        """Where its members' draws are used."""
        return self._components[0].device

    @property
    def tensors(self) -> dict[str, Any]:
        """The members' tensors under their numbers."""
        return {str(i): c.tensors for i, c in enumerate(self._components)}

    @classmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """Members know their own shapes, so a file rebuilds them one by one."""
        raise NotSupported("a mixture is rebuilt from its components: Mixture(components, weights)")

    def to(self, device: torch.device | str) -> Self:
        """The same mixture on another device."""
        return type(self)([c.to(device) for c in self._components], self._shares).annotated_like(self, device)

    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """Draws number `indices`: a component by its weight, then a draw from it."""
        top = max(indices) + 1
        u = torch.rand(top, generator=generator(seed, 0x6D697874757265), dtype=torch.float64)
        owner = torch.searchsorted(self._shares.double().cumsum(0), u).clamp(max=len(self._components) - 1).tolist()
        parts: list[Weights] = []
        places: list[int] = []
        for m, component in enumerate(self._components):
            own = [place for place, i in enumerate(indices) if owner[i] == m]
            if not own:
                continue
            picks = [indices[place] for place in own]
            if isinstance(component, Samples):  # its draw k is the k-th stored one, so take them at random instead
                parts.append({k: w[picks] for k, w in component.sample(top, seed=_own_seed(seed, m)).items()})
            else:
                parts.append(component.draw(picks, _own_seed(seed, m)))
            places += own
        back = torch.as_tensor(places).argsort().to(self.device)
        return tree.tree_map(lambda *t: torch.cat(t)[back], parts[0], *parts[1:])

    def representative(self) -> Weights:
        """The first component's."""
        return self._components[0].representative()

    def strata(self, num_samples: int, seed: int) -> list[Stratum]:
        """Every component's share of the draws, and at least one draw of each."""
        result = []
        counts = _shares_of(max(num_samples, len(self._components)), self._shares)
        for m, (component, count) in enumerate(zip(self._components, counts, strict=True)):
            for s in component.strata(count, _own_seed(seed, m)):
                weight = float(self._shares[m]) * s.weight
                result.append(Stratum(s.posterior, s.indices, weight, s.seed, s.exact))
        return result

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log Σₘ πₘ qₘ(params)."""
        parts = torch.stack([c.log_prob(params) for c in self._components])
        shares = self._shares.to(parts).log().reshape(-1, *[1] * (parts.dim() - 1))
        return torch.logsumexp(parts + shares, 0)

    def evidence(self) -> Evidence:
        """Refused where every component has its own: modes may be copies of each other, so theirs do not simply add up."""
        if self._evidence is None and any(c._evidence is not None for c in self._components):
            raise NotSupported(
                "each component of this mixture has an evidence of its own: [c.evidence() for c in posterior.components]"
            )
        return super().evidence()

    def diagnostics(self, x: Any = None) -> Diagnostics:
        """Chains are judged together, with inputs x by what they predict there; other components' messages are collected."""
        if all(isinstance(c, Samples) for c in self._components):
            found = of_chains(self._components, x)
            return with_collapsed_scales(self, together(found, *(c._diagnostics for c in self._components)) or found)
        messages = tuple(
            f"component {m}: {t}" for m, c in enumerate(self._components) for t in c.diagnostics().messages
        )
        return Diagnostics(messages=messages, table={}, ok=all(c.diagnostics().ok for c in self._components))

    def to_arviz(self) -> Any:
        """Chains as ArviZ's `InferenceData` (`pip install plausible[arviz]`)."""
        if not all(isinstance(c, Samples) for c in self._components):
            raise NotSupported("ArviZ takes chains; a mixture of HMC, NUTS or other samplers' runs has them")
        return to_arviz(self._components)


def mixture(posteriors: Sequence[Posterior], weights: Sequence[float] | None = None) -> Posterior:
    """Mix posteriors of one model, equally unless told otherwise."""
    return Mixture(posteriors, weights)


def _own_seed(seed: int, component: int) -> int:
    return generator(seed, component).initial_seed()


def _shares_of(total: int, weights: Tensor) -> list[int]:
    """Divide `total` draws by weight, each component at least one, largest remainders first."""
    exact = weights.double() * total
    counts = [max(1, int(e)) for e in exact]
    order = sorted(range(len(counts)), key=lambda m: float(exact[m]) - counts[m], reverse=True)
    for m in order[: max(0, total - sum(counts))]:
        counts[m] += 1
    return counts
