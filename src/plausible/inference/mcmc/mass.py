"""Mass matrices: the coordinates in which a sampler sees a standard normal, and how they are learned from draws.

The inverse mass is the estimated covariance of the posterior, Σ = L Lᵀ. Samplers work with whitened momenta
s = Lᵀ p ~ N(0, I), so that a kinetic energy is ½ s · s, a velocity is L s, and a slope pulls with Lᵀ ∇: everything is
one vector, and no other formula knows which kind of mass there is.
"""

from __future__ import annotations

import torch
from torch import Tensor

REGULARISATION = 5.0  # Stan's: as if so many draws of variance 1e-3 had been seen besides
SLOPES_PER_UNKNOWN = 1.0  # as many, of draws whose slopes are known
DRAWS_PER_UNKNOWN = 10.0  # how many draws, much alike, a correlation takes before half of it is believed


class Identity:
    """No adaptation."""

    def init(self, vector: Tensor) -> dict[str, Tensor]:
        """Nothing to remember but a place to stand."""
        return {"count": torch.zeros((), dtype=vector.dtype, device=vector.device)}

    def in_use(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `outward` and `inward` read; the rest remembers draws, and no leapfrog needs it."""
        return {}

    def outward(self, mass: dict[str, Tensor], vector: Tensor) -> Tensor:
        """L s: from the sampler's coordinates to those of the unknowns."""
        return vector

    def inward(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Lᵀ ∇: a slope in the unknowns as a slope in the sampler's coordinates."""
        return slope

    def inward_inverse(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """L⁻ᵀ: the slope that `inward` was given."""
        return slope

    def observed(
        self, mass: dict[str, Tensor], vector: Tensor, active: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Take a draw into account where `active`, and the slope there in the sampler's coordinates."""
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

    def in_use(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """The deviations."""
        return {"deviation": mass["deviation"]}

    def outward(self, mass: dict[str, Tensor], vector: Tensor) -> Tensor:
        """Deviation times vector."""
        return mass["deviation"] * vector

    def inward(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Deviation times slope."""
        return mass["deviation"] * slope

    def inward_inverse(self, mass: dict[str, Tensor], slope: Tensor) -> Tensor:
        """Slope over deviation."""
        return slope / mass["deviation"]

    def observed(
        self, mass: dict[str, Tensor], vector: Tensor, active: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
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

    def in_use(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """The root."""
        return {"root": mass["root"]}

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
        return super()._estimate(_blended(variance, count, DRAWS_PER_UNKNOWN), count)


class Sloped(Full):
    """A dense covariance from draws and the slopes at them: the Σ that makes one the image of the other.

    The slopes of a normal posterior are −Σ⁻¹ (w − μ), so that their covariance is G = Σ⁻¹ C Σ⁻¹, whatever the covariance C
    of the draws: Σ is the geometric mean of C and G⁻¹, also where the draws have seen a small part of the posterior yet.
    All of it is meant in the coordinates of the last mass, in which the posterior is rounder from window to window.
    """

    def init(self, vector: Tensor) -> dict[str, Tensor]:
        """The unit matrix."""
        mass = super().init(vector)
        return {**mass, "slope_mean": mass["mean"].clone(), "slope_squares": mass["squares"].clone()}

    def observed(
        self, mass: dict[str, Tensor], vector: Tensor, active: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Welford's update of both."""
        assert slope is not None
        new = super().observed(mass, vector, active)
        of_slopes = {"count": mass["count"], "mean": mass["slope_mean"], "squares": mass["slope_squares"]}
        then = super().observed(of_slopes, slope, active)
        return {**new, "slope_mean": then["mean"], "slope_squares": then["squares"]}

    def renewed(self, mass: dict[str, Tensor]) -> dict[str, Tensor]:
        """The geometric mean, seen from the last root."""
        last, count = mass["root"], mass["count"]
        half = torch.linalg.solve_triangular(last, mass["squares"], upper=False)
        of_draws = torch.linalg.solve_triangular(last, half.mT, upper=False)
        eye = torch.eye(last.shape[-1], dtype=last.dtype, device=last.device)
        draws, slopes = (
            _shrunk(_blended(squares / (count - 1).clamp(min=1.0), count, SLOPES_PER_UNKNOWN), count, eye)
            for squares in (of_draws, mass["slope_squares"])
        )
        sound = draws.isfinite().all() & slopes.isfinite().all()  # squares can overflow where slopes do not
        draws, slopes = torch.where(sound, draws, eye), torch.where(sound, slopes, eye)
        root, failed = torch.linalg.cholesky_ex(_geometric_mean(draws, slopes))
        forgotten = {k: torch.zeros_like(v) for k, v in mass.items() if k != "root"}
        return {**forgotten, "root": last @ torch.where(failed == 0, root, eye)}


def _geometric_mean(draws: Tensor, slopes: Tensor) -> Tensor:
    """C # G⁻¹ = G^−½ (G^½ C G^½)^½ G^−½."""
    values, vectors = torch.linalg.eigh(0.5 * (slopes + slopes.mT))
    values = values.clamp(min=torch.finfo(values.dtype).tiny)
    there = (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mT
    back = (vectors * values.rsqrt().unsqueeze(-2)) @ vectors.mT
    middle = there @ draws @ there
    values, vectors = torch.linalg.eigh(0.5 * (middle + middle.mT))
    half = back @ (vectors * (values.clamp(min=0.0) ** 0.25).unsqueeze(-2))
    return half @ half.mT


def _blended(variance: Tensor, count: Tensor, per_unknown: float) -> Tensor:
    """A covariance of few draws with the less of its correlations the fewer they are."""
    windows = (count / (per_unknown * variance.shape[-1])) ** 2
    trust = windows / (1 + windows)
    return trust * variance + (1 - trust) * torch.diag_embed(variance.diagonal(dim1=-2, dim2=-1))


def _shrunk(variance: Tensor, count: Tensor, floor: Tensor | float) -> Tensor:
    return variance * count / (count + REGULARISATION) + 1e-3 * REGULARISATION / (count + REGULARISATION) * floor


def make_mass(name: str) -> Identity:
    """The mass of a name."""
    return {"identity": Identity, "diagonal": Diagonal, "full": Full, "blended": Blended, "sloped": Sloped}[name]()
