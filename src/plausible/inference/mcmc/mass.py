"""Mass matrices: how momenta are drawn, what velocity they mean, and how they are learned from draws.

The inverse mass is the estimated covariance of the posterior, so that the sampler sees a standard normal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...weights.algebra import Weights, from_vector, to_vector

REGULARISATION = 5.0  # Stan's: as if so many draws of variance 1e-3 had been seen besides


def _shrunk(count: Tensor, second_moment: Tensor, floor: Tensor | float) -> Tensor:
    variance = second_moment / (count - 1).clamp(min=1.0)
    return variance * count / (count + REGULARISATION) + 1e-3 * REGULARISATION / (count + REGULARISATION) * floor


class Identity:
    """No adaptation."""

    def init(self, params: Weights) -> dict[str, Any]:
        """Nothing to remember but a place to stand."""
        like = next(iter(params.values()))
        return {"count": torch.zeros((), dtype=like.dtype, device=like.device)}

    def momentum(self, mass: dict[str, Any], noise: Weights) -> Weights:
        """p ~ N(0, I)."""
        return noise

    def velocity(self, mass: dict[str, Any], momentum: Weights) -> Weights:
        """M⁻¹ p."""
        return momentum

    def kinetic(self, mass: dict[str, Any], momentum: Weights) -> Tensor:
        """½ pᵀ M⁻¹ p."""
        velocity = self.velocity(mass, momentum)
        return 0.5 * sum((momentum[k] * velocity[k]).sum() for k in momentum)  # type: ignore[return-value]

    def observed(self, mass: dict[str, Any], params: Weights, active: Tensor) -> dict[str, Any]:
        """Take a draw into account where `active`."""
        return mass

    def renewed(self, mass: dict[str, Any]) -> dict[str, Any]:
        """Use what was observed, and begin to observe anew."""
        return mass


class Diagonal(Identity):
    """One variance per unknown."""

    def init(self, params: Weights) -> dict[str, Any]:
        """Unit variances."""
        return {
            **super().init(params),
            "variance": {k: torch.ones_like(w) for k, w in params.items()},
            "mean": {k: torch.zeros_like(w) for k, w in params.items()},
            "squares": {k: torch.zeros_like(w) for k, w in params.items()},
        }

    def momentum(self, mass: dict[str, Any], noise: Weights) -> Weights:
        """p = z / √variance."""
        return {k: z * mass["variance"][k].rsqrt() for k, z in noise.items()}

    def velocity(self, mass: dict[str, Any], momentum: Weights) -> Weights:
        """variance · p."""
        return {k: p * mass["variance"][k] for k, p in momentum.items()}

    def observed(self, mass: dict[str, Any], params: Weights, active: Tensor) -> dict[str, Any]:
        """Welford's update."""
        on = active.to(mass["count"].dtype)
        count = mass["count"] + on
        before = {k: w - mass["mean"][k] for k, w in params.items()}
        mean = {k: m + on * before[k] / count.clamp(min=1.0) for k, m in mass["mean"].items()}
        squares = {k: s + on * before[k] * (params[k] - mean[k]) for k, s in mass["squares"].items()}
        return {"count": count, "variance": mass["variance"], "mean": mean, "squares": squares}

    def renewed(self, mass: dict[str, Any]) -> dict[str, Any]:
        """The draws' variances, shrunk a little."""
        variance = {k: _shrunk(mass["count"], s, 1.0) for k, s in mass["squares"].items()}
        zeros = lambda t: {k: torch.zeros_like(w) for k, w in t.items()}  # noqa: E731
        return {
            "count": torch.zeros_like(mass["count"]),
            "variance": variance,
            "mean": zeros(mass["mean"]),
            "squares": zeros(mass["squares"]),
        }


class Full(Identity):
    """A dense covariance of all unknowns."""

    def init(self, params: Weights) -> dict[str, Any]:
        """The unit matrix."""
        vector = to_vector(params)
        eye = torch.eye(vector.numel(), dtype=vector.dtype, device=vector.device)
        zero = torch.zeros_like(vector)
        return {
            **super().init(params),
            "covariance": eye,
            "root": eye.clone(),
            "mean": zero,
            "squares": torch.zeros_like(eye),
        }

    def momentum(self, mass: dict[str, Any], noise: Weights) -> Weights:
        """p = L⁻ᵀ z with L Lᵀ the covariance."""
        z = to_vector(noise).unsqueeze(-1)
        return from_vector(torch.linalg.solve_triangular(mass["root"].mT, z, upper=True).squeeze(-1), noise)

    def velocity(self, mass: dict[str, Any], momentum: Weights) -> Weights:
        """covariance · p."""
        return from_vector(mass["covariance"] @ to_vector(momentum), momentum)

    def observed(self, mass: dict[str, Any], params: Weights, active: Tensor) -> dict[str, Any]:
        """Welford's update."""
        on = active.to(mass["count"].dtype)
        count = mass["count"] + on
        w = to_vector(params)
        before = w - mass["mean"]
        mean = mass["mean"] + on * before / count.clamp(min=1.0)
        squares = mass["squares"] + on * before.unsqueeze(-1) * (w - mean).unsqueeze(-2)
        return {**mass, "count": count, "mean": mean, "squares": squares}

    def renewed(self, mass: dict[str, Any]) -> dict[str, Any]:
        """The draws' covariance, shrunk a little."""
        eye = torch.eye(mass["mean"].shape[-1], dtype=mass["mean"].dtype, device=mass["mean"].device)
        covariance = _shrunk(mass["count"], mass["squares"], eye)
        covariance = 0.5 * (covariance + covariance.mT)
        return {
            "count": torch.zeros_like(mass["count"]),
            "covariance": covariance,
            "root": torch.linalg.cholesky_ex(covariance)[0],
            "mean": torch.zeros_like(mass["mean"]),
            "squares": torch.zeros_like(mass["squares"]),
        }


def make_mass(name: str) -> Identity:
    """The mass of a name."""
    return {"identity": Identity, "diagonal": Diagonal, "full": Full}[name]()
