"""Laplace's approximation (MacKay, 1992; Ritter et al., 2018; Daxberger et al., 2021)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.errors import NotSupported
from ...core.evidence import Evidence
from ...core.method import Method, Sweep, require
from ...core.model import BayesianModel
from ...core.posteriors import LowRankPrecision, Posterior
from ...core.prior_groups import choose
from ...curvature import KINDS
from ...curvature.kronecker import blocks
from ...curvature.rules.rule import MatrixRule
from ...curvature.tracing import plan_for
from ...weights import tree
from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys
from ..point.map import MAP
from .bare_density import expand, refuse_unsuitable
from .density import log_density
from .low_rank import leading_directions
from .newton import climb
from .places import NetworkPlace
from .precision import NOISE, noise_is_tuned, refuse_untunable, tuned_prior
from .prior_curvature import prior_curvature, refuse_correlated, refuse_products
from .spectrum import Spectrum
from .structures import bytes_needed, gaussian, require_memory, require_positive
from .survey import Found, survey, whole_slope

log = logging.getLogger("plausible")

STRUCTURES = ("diagonal", "kronecker", "low-rank", "full")
TUNINGS = ("marginal-likelihood", "validation")
MOST_ROUNDS = 20  # of a prior and the highest point under it
SETTLED = 1e-6  # relative change of a precision in one of these, or what half of the digits can say
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """A Gaussian around the highest point w* of the log joint, whose precision is the curvature there.

        q = N(w*, Λ⁻¹),   Λ = Σᵢ Jᵢᵀ Hᵢ Jᵢ + (prior's),   log p(D) ≈ log p(D, w*) + P/2 log 2π − ½ log |Λ|

    with Jᵢ the Jacobian of example i's outputs and Hᵢ the Hessian of −log p(yᵢ | ·) in them. Predictions linearise the
    network at w*, as that curvature does; `predict(..., linearised=False)` samples weights instead. Either way norm layers
    keep the statistics at which the curvature was taken.

    Args:
        structure: Of Λ: "diagonal", "kronecker" (a block per layer; prior precisions that differ between a weight's
            rows count by their mean), "low-rank" (the largest eigenvalues) or "full", which first takes Newton steps to
            the highest point (where ReLUs kink, as high as they lead). A `LogDensity` takes "diagonal" or "full".
        subset: "all", "last-layer" or name pattern(s): which unknowns vary. The rest stays at w*, and so do the scales of a
            prior that is kept non-centred.
        curvature: "ggn", "mc-fisher" or "empirical-fisher".
        prior_precision: Of the weights in Λ, found after training: None (the model's prior), a number,
            "marginal-likelihood" (the highest evidence, and the noise with it where that is unknown) or "validation" (the
            best predictions of `fit(validation=...)`). "full" climbs anew under the prior that it finds; the rest stays
            at w*.
        per: With "marginal-likelihood", one precision for the "network" or one per "layer".
        rank: Number of eigenvalues of "low-rank".
        base: How w* is found.
    """

    is_point: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True

    structure: str = "kronecker"
    subset: Any = "all"
    curvature: str = "ggn"
    prior_precision: float | str | None = None
    per: str = "network"
    rank: int = 10
    base: MAP = MAP()

    def __post_init__(self):
        require(self.structure in STRUCTURES, f"structure must be one of {STRUCTURES}, got {self.structure!r}")
        require(self.curvature in KINDS, f"curvature must be one of {KINDS}, got {self.curvature!r}")
        require(self.per in ("network", "layer"), f'per must be "network" or "layer", got {self.per!r}')
        require(isinstance(self.rank, int) and self.rank >= 1, f"rank must be a positive integer, got {self.rank}")
        require(isinstance(self.base, MAP), f"base must be a pl.MAP, got {self.base!r}")
        given = self.prior_precision
        if isinstance(given, str):
            require(given in TUNINGS, f"prior_precision must be a number, None or one of {TUNINGS}, got {given!r}")
        else:
            require(given is None or 0 < given < math.inf, f"prior_precision must be positive and finite, got {given}")
            # A float, whichever kind of number it was: those are what the runs of one `fit_many` may differ in.
            object.__setattr__(self, "prior_precision", None if given is None else float(given))
        low = self.structure == "low-rank"
        if low and self.curvature != "ggn":
            raise NotSupported(f'structure="low-rank" takes products with curvature="ggn" only, got {self.curvature!r}')
        if low and self.per == "layer" and given == "marginal-likelihood":
            raise NotSupported('structure="low-rank" has one precision per network; leave per="network"')

    @property
    def needs_validation(self) -> bool:
        """Whether held-out predictions choose the prior."""
        return self.prior_precision == "validation"

    def resolved(self, model: Any, num_steps: int) -> Self:
        """The base's; what this model cannot have is refused before it is trained."""
        if isinstance(model, BayesianModel):
            refuse_correlated(model)
            refuse_products(model, self.structure)
            if self.prior_precision is not None:
                refuse_untunable(model, self.prior_precision, self.curvature)
        else:
            refuse_unsuitable(self)
        named = isinstance(self.subset, str) and self.subset in ("all", "last-layer")
        names = list(model.start) if named else choose(list(model.start), self.subset, "subset")
        if self.structure == "full" and self.subset != "last-layer":
            require_memory(bytes_needed("full", None, names, model.start, self.rank), "full", None)
        return replace(self, base=self.base.resolved(model, num_steps))

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The base's state."""
        return self.base.init(model, params)

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The base's step."""
        return self.base.step(model, state, batch, rng)

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Posterior:
        """Refused: a curvature needs the data."""
        raise NotSupported("Laplace needs the data once more; it runs in pl.fit")

    def survey(self, model: Any, state: dict[str, Any], sweep: Sweep, validation: Sweep | None) -> Posterior:
        """The Gaussian, from one more look at the data."""
        if not isinstance(model, BayesianModel):
            return expand(self, model, state["params"])
        return Expansion(self, model, state["params"], sweep, validation).posterior()


class Expansion:
    """One run of the method on one mode."""

    def __init__(self, method: Laplace, model: BayesianModel, params: Weights, sweep: Sweep, validation: Sweep | None):
        self.method, self.model, self.sweep, self.validation = method, model, sweep, validation
        first = next(iter(sweep()), None)
        if first is None:
            raise ValueError("Laplace needs data to look at, and there are none")
        for name, value in params.items():
            if not bool(value.isfinite().all()):
                raise ValueError(
                    f"{name} is not finite, so there is no highest point here; train it again, or check the file"
                )
        self.names = chosen_names(model, params, first[0], method.subset)
        self.weights = tuple(n for n in self.names if n in model.weight_names)
        if not self.weights:
            raise NotSupported(f"subset={method.subset!r} leaves no weight to vary, only {', '.join(self.names)}")
        plan = plan_for(model, params, first[0], self.weights)
        self.blocks = blocks(plan, self.weights)
        device = next(iter(params.values())).device
        self.needed = bytes_needed(method.structure, plan, self.weights, params, method.rank)
        require_memory(self.needed, method.structure, device)
        self.params = params

    def posterior(self) -> Posterior:
        """The Gaussian with its evidence and diagnostics."""
        if self.method.structure == "full":
            model, prior, found = self._at_the_top()
        else:
            model, prior, found = self._tuned(self.survey(), self.method.prior_precision)
        answer, log_det = self.gaussian(found, prior, model)
        answer.linearised_by_default = True
        answer._evidence = self._evidence(model, found, log_det, prior)
        answer._diagnostics = self._diagnostics(model, answer, found)
        return answer

    def survey(self) -> Found:
        """The curvature where we are."""
        return survey(self.model, self.params, self.sweep, self.method.structure, self.method.curvature, self.names)

    def _at_the_top(self) -> tuple[BayesianModel, Weights, Found]:
        """Climb under the prior that Λ gets; a prior that is found depends on the top in turn, so the two take turns."""
        given = self.method.prior_precision
        if isinstance(given, float | int):
            self.model = self._tuned(None, given)[0]
        self.params = self._climbed(self.names)
        settled = max(SETTLED, torch.finfo(self.params[self.weights[0]].dtype).eps ** 0.5)
        for _ in range(MOST_ROUNDS if isinstance(given, str) else 0):
            before = self._hyperparameters()
            self.model, _, _ = self._tuned(self.survey(), given)
            self.params = self._climbed([n for n in self.names if n != NOISE or not noise_is_tuned(self, given)])
            change = (self._hyperparameters() / before).log().abs().max()
            if given == "validation" or float(change) < settled:
                break
        return self._tuned(self.survey(), None)

    def _climbed(self, names: list[str]) -> Weights:
        return climb(NetworkPlace(self.params, names, self.model, self.sweep, self.method.curvature)).params

    def _hyperparameters(self) -> Tensor:
        """The prior's precisions and the noise."""
        prior = prior_curvature(self.model, self.params)
        noise = [self.params[NOISE].exp()] if NOISE in self.names else []
        return to_vector({k: prior[k] for k in self.weights} | {f"{i}": t for i, t in enumerate(noise)}).double()

    def gaussian(self, found: Found, prior: Weights, model: BayesianModel) -> tuple[Any, Tensor]:
        """For one choice of the prior's precisions."""
        cold = 1.0 / model.temperature
        curvature = {
            # A block is rows ⊗ columns / count, so its count tempers the columns back.
            "weights": tree.tree_map(lambda t: t * cold, found.curvature),
            "unknowns": {k: v * cold for k, v in found.unknowns.items() if k in self.names},
        }
        own = {k: v * cold for k, v in prior.items()}
        mean = {k: v.detach() for k, v in self.params.items()}
        plain = model.bound(buffers=None)
        if self.method.structure == "low-rank":
            return self._low_rank(plain, mean, curvature["unknowns"], own, cold)
        return gaussian(self.method.structure, plain, mean, curvature, own, self.blocks)

    def _low_rank(
        self, model: BayesianModel, mean: Weights, unknowns: Weights, prior: Weights, cold: float
    ) -> tuple[LowRankPrecision, Tensor]:
        """The prior everywhere but in the directions of the largest eigenvalues."""
        precision = {k: d + unknowns[k] if k in unknowns else d for k, d in prior.items()}
        for k, d in precision.items():
            require_positive(k, d)
        root = to_vector({k: precision[k] for k in self.weights}).rsqrt()
        values, vectors = self._directions(root)
        values = values * cold
        spread = from_vector(vectors, {k: mean[k] for k in self.weights})
        rest = {k: d.new_zeros(len(values), *d.shape) for k, d in precision.items() if k not in spread}
        answer = LowRankPrecision(model, mean, precision, {**spread, **rest}, values)
        log_det = values.double().log1p().sum() + sum(d.double().log().sum() for d in precision.values())
        return answer, log_det

    def _directions(self, root: Tensor) -> tuple[Tensor, Tensor]:
        return leading_directions(
            self.model, self.params, self.sweep, self.method.curvature, self.weights, root, self.method.rank
        )

    def spectrum(self, found: Found, groups: list[list[str]]) -> Spectrum:
        """log |Λ| as a function of the groups' precisions."""
        if self.method.structure == "low-rank":
            values, _ = self._directions(torch.ones_like(to_vector({k: self.params[k] for k in self.weights})))
            return Spectrum.of_eigenvalues(values, sum(self.params[k].numel() for k in self.weights))
        return Spectrum.of(self.method.structure, found.curvature, groups, self.blocks, self.params)

    def set_noise(self, found: Found, scale: float) -> Found:
        """Move to another noise scale: the likelihood is another one there, and curvature goes with 1 / scale²."""
        before = self.model.constrain({NOISE: self.params[NOISE]})[NOISE]
        targets = found.unknowns[NOISE].double() / 2
        squares = -2 * before.double() ** 2 * (found.log_likelihood + targets * (before.double().log() + HALF_LOG_2PI))
        value = -targets * (math.log(scale) + HALF_LOG_2PI) - 0.5 * squares / scale**2
        natural = torch.full_like(before, scale)
        self.params = {**self.params, NOISE: self.model._transforms[NOISE].inv(natural)}
        louder = float(before) ** 2 / scale**2
        return replace(
            found, log_likelihood=value.reshape(()), curvature=tree.tree_map(lambda t: t * louder, found.curvature)
        )

    def _tuned(self, found: Any, given: float | str | None) -> tuple[BayesianModel, Weights, Any]:
        """The model with the prior that Λ gets, that prior's precisions, and the curvature at the noise that goes with it."""
        whole = prior_curvature(self.model, self.params)
        prior = {k: whole[k] for k in self.names}
        return (self.model, prior, found) if given is None else tuned_prior(self, found, prior, given)

    def _evidence(self, model: BayesianModel, found: Found, log_det: Tensor, prior: Weights) -> Evidence | None:
        if model.temperature != 1.0:
            return None
        log_prior = log_density(model, self.params, self.names)
        if log_prior is None:
            return None
        size = sum(p.numel() for p in prior.values())
        value = found.log_likelihood.cpu() + log_prior + size * HALF_LOG_2PI - 0.5 * log_det.cpu()
        return Evidence(value, "laplace")

    def _diagnostics(self, model: BayesianModel, answer: Any, found: Found) -> Diagnostics:
        _, slope = whole_slope(model, self.params, self.sweep)
        vector = to_vector({k: slope[k] for k in answer.free})
        size = vector.numel()
        distance = float(answer.unscatter(vector).norm())
        messages = [
            f"expanded {distance:.2g} posterior deviations from the highest point (draws are about {size**0.5:.2g} away)",
            f"{self.needed:,} bytes for the curvature of {size:,} unknowns",
        ]
        ok = distance <= size**0.5
        if not ok:
            way_out = (
                "train longer" if model is self.model else "train with the prior that was found, posterior.model.prior"
            )
            messages.append(f'that is farther than a draw: {way_out}, or take structure="full", which goes there')
        if found.clipped > 1e-6:
            ok = False
            messages.append(
                f"the likelihood's Hessian is indefinite (down to {-found.clipped:.2g} of its largest eigenvalue) and was clipped"
            )
        table = {"expansion": {"distance": distance, "clipped": found.clipped}}
        return Diagnostics(messages=tuple(messages), table=table, ok=ok)


def chosen_names(model: BayesianModel, params: Mapping[str, Tensor], inputs: Any, subset: Any) -> list[str]:
    """The unknowns that vary."""
    # Scales that weights are multiples of: the likelihood bends along both together, so one of the two stays where it is.
    scales = set(model.output_names) - set(model.weight_names)
    varied = [n for n in params if n not in scales]
    if isinstance(subset, str) and subset == "all":
        return varied
    if isinstance(subset, str) and subset == "last-layer":
        plan = plan_for(model, params, inputs, tuple(model.weight_names))
        layers = [c for c in plan.calls if isinstance(c.rule, MatrixRule) and c.weight is not None]
        if not layers:
            raise NotSupported(
                "this network has no linear or convolutional layer to be its last; give subset= a name pattern"
            )
        return [n for n in params if n in layers[-1].names]
    return choose(varied, subset, "subset")
