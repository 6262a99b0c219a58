"""What every posterior can do: draw weights, predict by averaging over them, be saved."""

from __future__ import annotations

import copy
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ...weights import tree
from ...weights.algebra import Weights
from ...weights.rng import run_key
from ..collapse import with_collapsed_scales
from ..diagnostics import Diagnostics
from ..errors import NotSupported
from ..evidence import Evidence
from ..hyperpriors import LogFlat
from ..target import Target


@dataclass(frozen=True)
class Stratum:
    """Some draws of one posterior, all of one weight; `exact` if they are all there is, so nothing is sampled."""

    posterior: Posterior
    indices: Sequence[int]
    weight: float
    seed: int
    exact: bool


class Posterior(ABC):
    """A distribution over the unknowns of a model.

    A subclass states its tensors in `tensors` (what is saved), makes draws in `draw`, and says how many there are to
    average over in `strata`.
    """

    model: Any  # a Target; what predicts needs a BayesianModel
    finite = False  # whether draw k is a stored one, the same for every seed
    bank: Weights | None = None  # statistics of norm layers, one row per draw (draw k of seed `bank_seed`)
    bank_seed: int = 0
    mean_bank: Weights | None = None  # statistics of norm layers at the mean
    linearised_by_default: bool = False  # whether `predict` linearises the network unless told
    notes: Mapping[str, Any] = {}  # anything JSON can hold that belongs beside a posterior, such as a table's columns
    _evidence: Evidence | None = None
    _diagnostics: Diagnostics | None = None

    # --- what a shape says of itself ---

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Any]:
        """Everything that defines the distribution, as a tree of tensors."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, model: Target, tensors: Mapping[str, Any]) -> Self:
        """The inverse of `tensors`."""

    @abstractmethod
    def draw(self, indices: Sequence[int], seed: int) -> Weights:
        """Draws number `indices`, each a function of (seed, index) alone, stacked along a leading axis."""

    def representative(self) -> Weights:
        """One set of unknowns that this is about, whose shapes are those of every draw."""
        return tree.unstack(self.draw(range(1), 0), 0)

    def strata(self, num_samples: int, seed: int) -> list[Stratum]:
        """What to average over for a prediction of `num_samples` draws."""
        return [Stratum(self, range(num_samples), 1.0 / num_samples, seed, exact=False)]

    @property
    def mean(self) -> Weights:
        """The mean of the unconstrained unknowns."""
        raise NotSupported(f"{type(self).__name__} has no mean; draw from it with .sample(n)")

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(params), where there is a density; leading axes of `params` are kept."""
        raise NotSupported(
            f"{type(self).__name__} has no density; Diagonal, LowRank, Kronecker, Full and mixtures of them have"
        )

    # --- what all share ---

    @property
    def components(self) -> list[Posterior]:
        """The members of a mixture; any other posterior is its own only one."""
        return [self]

    @property
    def weights(self) -> Tensor:
        """The components' weights."""
        return torch.ones(1)

    @property
    def device(self) -> torch.device:
        """Where the posterior lives."""
        return next(tree.leaves(self.tensors))[1].device

    def sample(self, n: int, seed: int | None = None) -> Weights:
        """n independent draws of the unconstrained unknowns, with a leading axis; no seed draws fresh entropy."""
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"the number of samples must be a positive integer, got {n}")
        return self.draw(range(n), secrets.randbits(63) if seed is None else seed)

    def predict(
        self,
        x: Any,
        num_samples: int = 64,
        seed: int = 0,
        tolerance: float | None = None,
        max_samples: int = 4096,
        linearised: bool | None = None,
        memory: int | None = None,
        link: str | None = None,
    ) -> Any:
        """Average over the posterior: the Bayesian model average at inputs `x`.

        Args:
            x: Inputs as the network takes them, from any device; the answer is on theirs.
            num_samples: Draws to average over. What is finite (an ensemble) is averaged whole instead.
            seed: The same call gives the same numbers.
            tolerance: Draw until the largest Monte Carlo error of the mean is below this.
            max_samples: Where `tolerance` gives up, with a warning.
            linearised: Whether to predict with f(x; w̄) + J(x) (w − w̄), the network linearised at a Gaussian's mean,
                instead of f(x; w); None leaves it to the method that the posterior is of.
            memory: Budget in bytes for what a prediction holds at a time.
            link: "probit" gives `.probs` and `.mean` in closed form from the exact variance of the linearised outputs;
                the rest is of the draws still.
        """
        from ..prediction import predict

        return predict(self, x, num_samples, seed, tolerance, max_samples, memory, linearised, link)

    def refresh(self, data: Any, num_samples: int = 64, seed: int = 0) -> Self:
        """Gather norm statistics for draws 0, 1, ... of `seed` from training data, so that `predict` can use them."""
        from ..refresh import refresh

        refresh(self, data, num_samples, seed)
        return self

    def evidence(self) -> Evidence:
        """The method's own estimate of the log marginal likelihood."""
        temperature = getattr(self.model, "temperature", 1.0)
        if temperature != 1.0:
            raise NotSupported(f"a tempered model (T = {temperature}) has no evidence; fit it with temperature=1.0")
        if self._evidence is None:
            learnt = [k for k, h in getattr(self.model, "hyperpriors", {}).items() if isinstance(h, LogFlat)]
            why = f'{learnt[0]} has the flat prior that "learn" means' if learnt else "its prior is flat"
            way_out = f"; pl.hyperpriors.HalfNormal() is a density for {learnt[0]}" if learnt else ""
            raise NotSupported(
                f"this {type(self).__name__} has no evidence: its method estimates none, or {why}, which is no density; "
                f"Laplace with pl.priors.Normal() has one{way_out}"
            )
        return self._evidence

    def diagnostics(self, x: Any = None) -> Diagnostics:
        """What speaks for and against trusting this posterior; chains can be judged by what they predict at inputs `x`."""
        found = self._diagnostics or Diagnostics(
            messages=("nothing to report: no chain was run whose convergence could be judged",), table={}
        )
        return with_collapsed_scales(self, found)

    def to(self, device: torch.device | str) -> Self:
        """The same posterior on another device."""
        twin = self.from_tensors(self.model, tree.to(self.tensors, device))
        return twin.annotated_like(self, device)

    def annotated_like(self, other: Posterior, device: torch.device | str | None = None) -> Self:
        """This posterior with another's statistics, evidence, diagnostics and way to predict."""
        self.bank = None if other.bank is None else tree.to(other.bank, device)
        self.mean_bank = None if other.mean_bank is None else tree.to(other.mean_bank, device)
        self.linearised_by_default = other.linearised_by_default
        self.bank_seed, self._evidence, self._diagnostics = other.bank_seed, other._evidence, other._diagnostics
        self.notes = other.notes
        return self

    def save(self, path: str | Path) -> None:
        """Write one file that `pl.load` reads: tensors and a JSON manifest, never code."""
        from ..files.posterior_file import save

        save(self, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sum(w.numel() for w in self.model.start.values()):,} unknowns)"

    def _keys(self, indices: Sequence[int], seed: int) -> Tensor:
        return run_key(seed, torch.as_tensor(list(indices), device=self.device))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)  # tensors are never written after construction
