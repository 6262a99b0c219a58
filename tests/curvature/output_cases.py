"""Likelihoods of every kind with outputs and targets for them, and their Hessians one example at a time."""

from typing import Any

import torch
from torch import Tensor

from plausible.core.likelihoods import (
    Bernoulli,
    Categorical,
    CensoredNormal,
    HeteroscedasticNormal,
    Normal,
    Poisson,
    StudentT,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(*shape: int, below: int, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


class Gumbel:
    """A user's own: torch validates its arguments by looking at them, which `vmap` forbids."""

    def distribution(self, outputs):
        return torch.distributions.Gumbel(outputs, torch.ones_like(outputs), validate_args=True)

    def log_prob(self, outputs, y):
        return self.distribution(outputs).log_prob(y).flatten(1).sum(1)


PRECISION = torch.tensor([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]], dtype=torch.float64)


class CorrelatedNormal:
    """A user's own whose outputs meet."""

    def distribution(self, outputs):
        return torch.distributions.MultivariateNormal(outputs, precision_matrix=PRECISION, validate_args=False)

    def log_prob(self, outputs, y):
        residual = y - outputs
        return -0.5 * (residual @ PRECISION * residual).sum(1)


class Cauchy:
    """A user's own that is not log-concave: −log p has second derivative 2 (1 − z²) / (1 + z²)²."""

    def distribution(self, outputs):
        return torch.distributions.Cauchy(outputs, torch.ones_like(outputs))

    def log_prob(self, outputs, y):
        return -torch.log1p((y - outputs) ** 2)


# (likelihood, outputs, targets): −log p is convex in the outputs, so the Hessian is the Hessian.
CONVEX: dict[str, tuple[Any, Tensor, Tensor]] = {
    "classes": (Categorical(), normal(5, 4), whole(5, below=4)),
    "one class": (Categorical(), normal(5, 1), whole(5, below=1)),
    "pixels": (Categorical(), normal(2, 3, 2, 2), whole(2, 2, 2, below=3)),
    "ignored pixels": (Categorical(ignore_index=2), normal(3, 4, 3, 2), whole(3, 3, 2, below=4)),
    "ignored labels": (Categorical(ignore_index=-100), normal(4, 3), torch.tensor([0, -100, 2, 1])),
    "bits": (Bernoulli(), normal(5, 3), whole(5, 3, below=2)),
    "one bit": (Bernoulli(), normal(5), normal(5, seed=3).sigmoid()),
    "counts": (Poisson(), normal(5, 3), whole(5, 3, below=6)),
    "one normal": (Normal(0.4), normal(5), normal(5, seed=3)),
    "normals": (Normal(0.4), normal(5, 2), normal(5, 2, seed=3)),
    "normal images": (Normal(0.4), normal(2, 2, 3, 2), normal(2, 2, 3, 2, seed=3)),
    "a scale each": (Normal(torch.tensor([0.4, 2.0], dtype=torch.float64)), normal(5, 2), normal(5, 2, seed=3)),
    "censored": (CensoredNormal(0.6, lower=-0.5, upper=0.5), normal(9, 2), normal(9, 2, seed=3)),
    "truncated": (CensoredNormal(0.6, 0.0, 1.0, -2.0), normal(9), normal(9, seed=3).clamp_min(-2)),
    "a user's": (Gumbel(), normal(5, 2), normal(5, 2, seed=3)),
    "a user's that meet": (CorrelatedNormal(), normal(5, 3), normal(5, 3, seed=3)),
}
FISHER: dict[str, tuple[Any, Tensor, Tensor]] = {
    "heteroscedastic": (HeteroscedasticNormal(), normal(5, 4), normal(5, 2, seed=3)),
    "heteroscedastic images": (HeteroscedasticNormal(), normal(2, 3, 2, 2), normal(2, 3, 2, 1, seed=3)),
    "student": (StudentT(3.0, 0.7), normal(5, 2), normal(5, 2, seed=3)),
    "one student": (StudentT(5.0, 0.7), normal(5), normal(5, seed=3)),
}
OBSERVED: dict[str, tuple[Any, Tensor, Tensor]] = {
    "censored of learnt scale": (CensoredNormal(None, -0.5, 0.5), normal(6, 4), normal(6, 2, seed=3)),
    "indefinite": (Cauchy(), normal(9), 2 * normal(9, seed=3)),
}
EVERY = {**CONVEX, **FISHER, **OBSERVED}
# One example each, for the Fisher information of targets that are drawn; the targets say only what is ignored.
SAMPLED: dict[str, tuple[Any, Tensor, Tensor]] = {
    "classes": (Categorical(), normal(1, 4), torch.zeros(1, dtype=torch.long)),
    "pixels": (Categorical(ignore_index=1), normal(1, 3, 2, 2), torch.tensor([[[0, 1], [2, 2]]])),
    "bits": (Bernoulli(), normal(1, 3), torch.zeros(1, 3)),
    "normals": (Normal(0.4), normal(1, 2), torch.zeros(1, 2)),
    "heteroscedastic": (HeteroscedasticNormal(), normal(1, 4), torch.zeros(1, 2)),
    "counts": (Poisson(), normal(1, 2), torch.zeros(1, 2)),
    "student": (StudentT(3.0, 0.7), normal(1, 2), torch.zeros(1, 2)),
    "a user's that meet": (CorrelatedNormal(), normal(1, 3), torch.zeros(1, 3)),
}


def brute_force(likelihood: Any, outputs: Tensor, y: Tensor) -> Tensor:
    """One example and one Hessian at a time."""
    found = []
    for f, target in zip(outputs, y, strict=True):

        def loss(flat, f=f, target=target):
            return -likelihood.log_prob(flat.reshape(1, *f.shape), target[None]).sum()

        found.append(torch.autograd.functional.hessian(loss, f.reshape(-1)))
    return torch.stack(found)


def outer(columns: Tensor) -> Tensor:
    flat = columns.flatten(2) if columns.ndim > 2 else columns[..., None]
    return torch.einsum("rni,rnj->nij", flat, flat)
