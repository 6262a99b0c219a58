"""A log density with no network behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from ..weights.algebra import Weights
from .batch import as_tensors
from .errors import NotSupported
from .target import Batch, Target


class LogDensity(Target):
    """Any log density of a dictionary of tensors, in place of a `BayesianModel`.

    Args:
        log_prob: A function of the natural values, a dictionary in the names and shapes of `init`; returns a 0-d tensor.
        init: Natural values where a run starts.
        support: Constraints (of `torch.distributions.constraints`) by name; what is not named is unconstrained.
    """

    network = None

    def __init__(
        self,
        log_prob: Callable[[Weights], Tensor],
        init: Mapping[str, Any],
        support: Mapping[str, Constraint] | None = None,
    ):
        if not callable(log_prob):
            raise TypeError(f"log_prob must be a function of a dictionary of tensors, got {type(log_prob).__name__}")
        if not isinstance(init, Mapping) or not init:
            raise TypeError(f"init must be a dictionary of tensors, got {init!r}")
        strange = sorted(set(support or ()) - set(init))
        if strange:
            raise ValueError(f"support names {strange}, which init does not have; it has {sorted(init)}")
        self.log_prob = log_prob
        self._transforms = {k: biject_to(c) for k, c in (support or {}).items()}
        natural = {
            k: v if v.is_floating_point() else v.to(torch.get_default_dtype())
            for k, v in as_tensors(dict(init)).items()
        }
        for k, c in (support or {}).items():
            if not bool(c.check(natural[k]).all()):
                raise ValueError(f"init[{k!r}] must lie in its support {c}, got {natural[k]}")
        self._start = {
            k: (self._transforms[k].inv(v) if k in self._transforms else v).detach() for k, v in natural.items()
        }
        self.num_data = 1.0

    @property
    def start(self) -> Weights:
        """Unconstrained start values."""
        return self._start

    def init(self, seed: int | None = None) -> Weights:
        """The start values; there is nothing to re-initialise, so a seed scatters them by standard normals."""
        if seed is None:
            return {k: v.clone() for k, v in self._start.items()}
        rng = torch.Generator().manual_seed(seed)
        return {k: v + torch.randn(v.shape, generator=rng, dtype=v.dtype).to(v.device) for k, v in self._start.items()}

    def random_valued(self, names: list[str] | None = None) -> list[str]:
        """Nothing here is out of reach of `init`."""
        return []

    def constrain(self, params: Mapping[str, Tensor]) -> Weights:
        """Natural values."""
        return {k: self._transforms[k](v) if k in self._transforms else v for k, v in params.items()}

    def log_joint(self, params: Mapping[str, Tensor], batch: Batch = None, num_data: float | None = None) -> Tensor:
        """log_prob of the natural values + log |Jacobian|."""
        total = self.log_prob(self.constrain(params))
        if total.dim() != 0:
            raise ValueError(f"log_prob must return a 0-d tensor, got shape {tuple(total.shape)}; sum it")
        for k, transform in self._transforms.items():
            total = total + transform.log_abs_det_jacobian(params[k], transform(params[k])).sum()
        return total

    def objective(self, params: Mapping[str, Tensor], batch: Batch, key: Tensor | None) -> Tensor:
        """The whole log density."""
        return self.log_joint(params)

    def slope(self, params: Mapping[str, Tensor], batch: Batch = None) -> tuple[Tensor, Weights]:
        """The log density and its gradient."""
        return super().slope(params, batch)

    def sample_prior(self, n: int, seed: int = 0) -> Weights:
        """Not there: a log density has no prior of its own."""
        raise NotSupported("a LogDensity has no prior to draw from; BayesianModel has")
