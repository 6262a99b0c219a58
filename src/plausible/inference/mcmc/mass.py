"""Mass matrices: the coordinates in which a sampler sees a standard normal, and how they are learned from draws.

The inverse mass is the estimated covariance of the posterior, Σ = L Lᵀ. Samplers work with whitened momenta
s = Lᵀ p ~ N(0, I), so that a kinetic energy is ½ s · s, a velocity is L s, and a slope pulls with Lᵀ ∇: everything is
one vector, and no other formula knows which kind of mass there is.
"""

from __future__ import annotations

import torch
from torch import Tensor

REGULARISATION = 5.0  # Stan's: as if so many draws of variance 1e-3 had been seen besides
DRAWS_PER_UNKNOWN = 10.0  # how many draws, much alike, a correlation takes before half of it is believed


class Identity:
    """No adaptation."""

    def init(self, vector: Tensor) -> dict[str, Tensor]:
        """Nothing to remember but a place to stand."""
        return {"count": torch.zeros((), dtype=vector.dtype, device=vector.device)}

    def outward(self, mass: dict[str, Tensor], vector: Tensor) -> Tensor:
        """L s: from the sampler's coordinates to those of the unknowns."""
        return vector

    def inward(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Lᵀ ∇: a slope in the unknowns as a slope in the sampler's coordinates."""
        return slope

    def inward_inverse(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """L⁻ᵀ: the slope that `inward` was given."""
        return slope

    def observed(self, mass: dict[str, Tensor], vector: Tensor, active: Tensor) -> dict[str, Tensor]:
        """Take a draw into account where `active`."""
        return mass

    def renewed(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """Use what was observed, and begin to observe anew."""
        return mass


class Diagonal(Identity):
    """One variance per unknown."""

    def init(self, vector: Tensor) -> dict[str, Tensor]:
        """Unit variances."""
        zero = torch.zeros_like(vector)
        return {
            **super().init(vector),
            "deviation": torch.ones_like(vector),
            "mean": zero,
            "squares": zero.clone(),
        }

    def outward(self, mass: dict[str, Tensor], vector: Tensor) -> Tensor:
        """Deviation times vector."""
        return mass["deviation"] * vector

    def inward(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Deviation times slope."""
        return mass["deviation"] * slope

    def inward_inverse(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Slope over deviation."""
        return slope / mass["deviation"]

    def observed(self, mass: dict[str, Tensor], vector: Tensor, active: Tensor) -> dict[str, Tensor]:
        """Welford's update."""
        on = active.to(mass["count"].dtype)
        count = mass["count"] + on
        before = vector - mass["mean"]
        mean = mass["mean"] + on * before / count.clamp(min=1.0)
        squares = mass["squares"] + on * self._product(before, vector - mean)
        return {**mass, "count": count, "mean": mean, "squares": squares}

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def renewed(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """The draws' variances, shrunk a little."""
        return {
            **mass,
            **self._estimate(mass["squares"] / (mass["count"] - 1).clamp(min=1.0), mass["count"]),
            "count": torch.zeros_like(mass["count"]),
            "mean": torch.zeros_like(mass["mean"]),
            "squares": torch.zeros_like(mass["squares"]),
        }

    def _estimate(self, variance: Tensor, count: Tensor) -> dict[str, Tensor]:
        return {"deviation": _shrunk(variance, count, 1.0).sqrt()}


class Full(Diagonal):
    """A dense covariance of all unknowns."""

    def init(self, vector: Tensor) -> dict[str, Tensor]:
        """The unit matrix."""
        eye = torch.eye(vector.numel(), dtype=vector.dtype, device=vector.device)
        return {
            **Identity.init(self, vector),
            "root": eye,
            "mean": torch.zeros_like(vector),
            "squares": torch.zeros_like(eye),
        }

    def outward(self, mass: dict[str, Tensor], vector: Tensor) -> Tensor:
        """L s with L Lᵀ the covariance."""
        return mass["root"] @ vector

    def inward(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Lᵀ ∇."""
        return mass["root"].mT @ slope

    def inward_inverse(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """L⁻ᵀ of it."""
        return torch.linalg.solve_triangular(mass["root"].mT, slope.unsqueeze(-1), upper=True).squeeze(-1)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return a.unsqueeze(-1) * b.unsqueeze(-2)

    def _estimate(self, variance: Tensor, count: Tensor) -> dict[str, Tensor]:
        eye = torch.eye(variance.shape[-1], dtype=variance.dtype, device=variance.device)
        covariance = _shrunk(0.5 * (variance + variance.mT), count, eye)
        root, failed = torch.linalg.cholesky_ex(covariance)
        # Rounding can make a covariance of very different widths indefinite, and half a root would end the walk: then the widths.
        widths = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1).sqrt())
        return {"root": torch.where(failed == 0, root, widths)}


class Blended(Full):
    """A dense covariance whose correlations count the more the more draws there are.

    Random walks make draws so much alike that the covariance of a short window is all but singular. Believing it would
    end the walk in the directions that it has not seen yet; believing its diagonal does not.
    """

    def _estimate(self, variance: Tensor, count: Tensor) -> dict[str, Tensor]:
        windows = (count / (DRAWS_PER_UNKNOWN * variance.shape[-1])) ** 2
        trust = windows / (1 + windows)
        diagonal = torch.diag_embed(variance.diagonal(dim1=-2, dim2=-1))
        return super()._estimate(trust * variance + (1 - trust) * diagonal, count)


def _shrunk(variance: Tensor, count: Tensor, floor: Tensor | float) -> Tensor:
    return variance * count / (count + REGULARISATION) + 1e-3 * REGULARISATION / (count + REGULARISATION) * floor


def make_mass(name: str) -> Identity:
    """The mass of a name."""
    return {"identity": Identity, "diagonal": Diagonal, "full": Full, "blended": Blended}[name]()
