"""Variational inference along natural gradients with the Hessian itself (Khan & Rue, 2023; Lin et al., 2020)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.errors import NotSupported
from ...core.method import Method, require
from ...core.posteriors import Diagonal, Full
from ...core.posteriors.gaussian import Gaussian
from ...core.schedules import schedule as find_schedule
from ...weights.algebra import Weights, from_vector, size, to_vector
from ...weights.rng import Keys
from .answer import checked, decided_by, judged, require_finite
from .draws import mean_at
from .hindsight import Hindsight
from .second_derivatives import twice_differentiable

log = logging.getLogger("plausible")

FAMILIES = ("full", "diagonal")
# For learning_rate=None: how many steps of size one all steps of a run are together. A run begins at a precision of N, which
# may be far above what a weight ends with, and the cosine's half of these steps leaves exp(−15) of it. Steps of more than half
# the size are for runs too short to do without.
STEPS, LARGEST_STEP, SHORT_RUN = 30.0, 0.5, 10.0
LARGEST = 4 * 1024**3  # bytes of a Hessian and what is made of it
COPIES = 6
MANY = 1000  # unknowns, from which a step takes seconds


@dataclass(frozen=True, kw_only=True)
class NaturalGradientVI(Hindsight, Method):
    """Climb the evidence lower bound over normals N(μ, S⁻¹) along its natural gradient, for small networks.

        S ← (1 − ρ) S + ρ G,   G = E_q[−∇² log p(w, D)]
        μ ← μ + ρ S⁻¹ E_q[∇ log p(w, D)]

    On a model whose posterior is normal one step of size 1 is Bayes' rule. Where G is negative along some direction, so that
    S could become so, the step there is that of a geodesic, S − ρ D + ½ ρ² D S⁻¹ D with D = S − G (Lin et al., 2020), which
    stays positive. Draws come in pairs μ ± L z, whose gradients average to that at μ on a quadratic.

    The log joint must have second derivatives: a kink, as of |w| or of a ReLU, has curvature that no draw sees.

    Independent normals do not know how weights bend the log joint together. With "diagonal" the precision of q follows the
    diagonal of G alone, and μ steps by the inverse of the S that "full" has here: E_q[∇] = 0 is where both end, and by a
    diagonal it would be reached in as many more steps as weights depend on one another.

    Args:
        family: "full", or "diagonal" for independent weights.
        learning_rate: ρ at its highest; None: by the length of the run.
        num_samples: Pairs of draws a step.
        schedule: Of the learning rate, as for `pl.MAP`.
    """

    family: str = "full"
    learning_rate: float | None = None
    num_samples: int = 1
    schedule: Any = "cosine"

    @property
    def compiles(self) -> bool:
        """A Hessian is as many backward passes as there are weights, and compiling them takes minutes."""
        return False

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise NotSupported(f"family must be one of {FAMILIES}, got {self.family!r}; ADVI has a low-rank one")
        rate, samples = self.learning_rate, self.num_samples
        require(rate is None or 0 < rate <= 1, f"learning_rate must lie in (0, 1], got {rate}")
        require(isinstance(samples, int) and samples >= 1, f"num_samples must be a positive integer, got {samples}")
        find_schedule(self.schedule)

    def resolved(self, model: Any, num_steps: int) -> Self:
        """The step size for a run of this length."""
        for group in getattr(model, "groups", ()):
            density = getattr(group.prior, "standard", group.prior)
            if not getattr(density, "smooth", True):
                raise NotSupported(
                    f"the prior {density!r} has a kink at zero, whose curvature no second derivative sees; ADVI needs none"
                )
        unknowns, samples = size(model.start), self.num_samples
        needed = 8 * COPIES * unknowns**2
        if needed > LARGEST:
            raise NotSupported(
                f"the Hessian of {unknowns:,} unknowns needs {needed / 2**30:,.0f} GiB; IVON, VOGN and ADVI do without"
            )
        if unknowns > MANY:
            log.warning(
                "NaturalGradientVI: a step takes %s backward passes, two for each of the %s unknowns and draws; it is for "
                "networks of hundreds of weights, and IVON, VOGN and NoisyKFAC for those of more",
                f"{2 * samples * unknowns:,}", f"{unknowns:,}",
            )  # fmt: skip
        if self.learning_rate is None:
            count = max(1, num_steps)
            return replace(self, learning_rate=max(min(LARGEST_STEP, STEPS / count), min(1.0, SHORT_RUN / count)))
        return self

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The mean, and a precision as large as one example's unit of curvature would make it."""
        start = to_vector(params).double()
        precision = torch.full_like(start, float(model.num_data))
        own = {"widths": precision} if self.family == "diagonal" else {}
        return {"params": params, "precision": torch.diag(precision), **own}

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        params, precision = state["params"], state["precision"]
        widths = state.get("widths")
        centre = to_vector(params)
        noise = [rng.normal(centre.shape, torch.float64, centre.device) for _ in range(self.num_samples)]
        key = model.rng.key() if model.needs_key and model.rng is not None else None
        gradient = torch.func.grad(_log_joint(model, params, batch, key))

        def moments(bound: Any, draw: Weights, seen: Any) -> tuple[Tensor, Tensor, Tensor]:
            value, slopes = bound.slope(from_vector(draw["point"], params), seen)
            # By reverse mode twice, the mode that every operation has.
            return value, to_vector({k: slopes[k] for k in params}), -torch.func.jacrev(gradient)(draw["point"])

        shifts = [_spread(precision if widths is None else widths, z).to(centre.dtype) for z in noise]
        draws = [{"point": point} for shift in shifts for point in (centre + shift, centre - shift)]
        with twice_differentiable():
            value, slope, curvature = mean_at(moments, model, draws, batch)
        rate = self.learning_rate * find_schedule(self.schedule)(rng.step.double() / model.num_steps)  # type: ignore[operator]
        precision = _full_step(precision, curvature.double(), rate)
        lower = torch.linalg.cholesky_ex(precision).L
        move = torch.cholesky_solve(slope.double().unsqueeze(-1), lower).squeeze(-1)
        state["precision"].copy_(precision)
        if widths is not None:
            widths.copy_(_diagonal_step(widths, curvature.diagonal().double(), rate))
        for k, change in from_vector(rate * move, params).items():
            params[k] += change
        return state, {"log_joint": value}

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Gaussian:
        """q."""
        params, precision = state["params"], state.get("widths", state["precision"])
        require_finite({"mean": params, "precision": precision})  # the covariance would only fail to decompose
        answer: Gaussian
        if self.family == "diagonal":
            answer = checked(Diagonal(model, params, from_vector(precision.rsqrt(), params)))
        else:
            covariance = torch.linalg.inv(precision)
            answer = checked(Full(model, params, (covariance + covariance.mT) / 2))
        answer._diagnostics = self._judged(
            precision, float(model.num_data), model.num_steps, torch.finfo(to_vector(params).dtype).eps
        )
        return answer

    def _judged(self, precision: Tensor, initial: float, steps: int, rounding: float) -> Diagnostics | None:
        """Whether S is still that of the start, or is so along some axis."""
        along = torch.arange(steps, dtype=torch.float64) / max(1, steps)
        kept = float((1 - float(self.learning_rate) * find_schedule(self.schedule)(along)).prod())  # type: ignore[arg-type]
        axes = precision if self.family == "diagonal" else torch.linalg.eigvalsh(precision)
        left = max(kept * initial, rounding * float(axes.max()))  # a Hessian in float32 is rounded to something, too
        return judged(
            kept, steps, f"learning_rate={float(self.learning_rate):.3g}", "the precision that it starts from",  # type: ignore[arg-type]
            "more steps or a larger learning_rate let it be forgotten", decided_by(left, {"S": axes}),
        )  # fmt: skip


def _log_joint(model: Any, like: Weights, batch: Any, key: Tensor | None) -> Callable[[Tensor], Tensor]:
    """As a function of a vector of all unknowns."""

    def function(vector: Tensor) -> Tensor:
        params = from_vector(vector, like)
        value = model.objective(params, batch, key)
        return model.add_remainder(value, params, {k: torch.zeros_like(w) for k, w in params.items()})[0]

    return function


def _spread(precision: Tensor, z: Tensor) -> Tensor:
    """A draw of N(0, S⁻¹) from standard normals."""
    if precision.dim() == 1:
        return z * precision.rsqrt()
    upper = torch.linalg.cholesky_ex(precision).L.mT  # not `cholesky`, which reads back whether it worked
    return torch.linalg.solve_triangular(upper, z.unsqueeze(-1), upper=True).squeeze(-1)


def _growth(ratio: Tensor, rate: Tensor) -> Tensor:
    """What S is multiplied by where G is `ratio` times S: 1 − ρ + ρ ratio, or the geodesic's where G is negative."""
    x = rate * (1 - ratio)
    return torch.where(ratio >= 0, 1 - x, 1 - x + 0.5 * x * x)


def _diagonal_step(precision: Tensor, curvature: Tensor, rate: Tensor) -> Tensor:
    return precision * _growth(curvature / precision, rate)


def _full_step(precision: Tensor, curvature: Tensor, rate: Tensor) -> Tensor:
    """In the basis in which S is the identity and G is diagonal, each direction by itself."""
    lower = torch.linalg.cholesky_ex(precision).L
    half = torch.linalg.solve_triangular(lower, curvature, upper=False)
    seen = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    # `eigh` raises for what is not finite, before `fit` can say at which step.
    fine = seen.isfinite().all()
    seen = torch.where(fine, seen, torch.eye(len(seen), dtype=seen.dtype, device=seen.device))
    ratios, basis = torch.linalg.eigh(0.5 * (seen + seen.mT))
    root = lower @ (basis * _growth(ratios, rate).sqrt())
    return (root @ root.mT).masked_fill(~fine, math.nan)
