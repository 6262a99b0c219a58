"""Automatic differentiation variational inference (Kucukelbir et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.method import Method, Sweep, require
from ...core.model import BayesianModel
from ...core.posteriors.gaussian import Gaussian
from ...core.schedules import Cosine
from ...weights.algebra import Weights, from_vector, scale_, size, to_vector
from ...weights.rng import Keys
from ..point.map import MAP
from . import adaptive
from .convergence import judged
from .draws import slopes_at
from .elbo import examine, is_density
from .families import make_family

ADAM, COSINE = MAP(), Cosine()  # the update and its schedule; the rate is this method's own
FAMILIES = ("diagonal", "low-rank", "full")
OPTIMIZERS = ("adam", "adaptive")
ESTIMATORS = ("reparameterised", "sticking-the-landing")
START = 0.1  # standard deviations at the start, of an unknown without inputs: a weight's is divided by √(its inputs)
HIGHEST_RATE = 0.1
WINDOWS = 20  # over which the ELBO is averaged, to see whether it still rises
TAIL, AVERAGED = (
    0.25,
    250,
)  # the last share of a run, over which q is averaged, and from how many of its steps at the most
LARGEST_FULL = 16 * 1024**3  # bytes of the dense factor with its moments and slope
ENTROPY = 0.5 * (1 + math.log(2 * math.pi))  # of a standard normal


@dataclass(frozen=True, kw_only=True)
class ADVI(Method):
    """Climb the evidence lower bound over normal distributions q of the unconstrained unknowns ζ.

        ELBO = E_q[log p(D, ζ)] + ½ log |Σ| + P/2 (1 + log 2π),   ζ = μ + L z,   z ~ N(0, I)

    with K draws of z for the expectation. The slopes are ∂/∂μ = E[g] and ∂/∂L = E[g zᵀ] + (the entropy's), with g the slope of
    the log joint at the draw; where all priors are normal with known scales, their part of the expectation is exact.
    "adam" climbs ELBO / N under a cosine; "adaptive" is the paper's step-size sequence for the ELBO itself, whose scale is
    sought with the first fifth of the run at the most. The answer is the average of μ, log σ and the shape over the last quarter
    of the run: few draws a step leave noise in the last iterate, which its average does not have (Polyak & Juditsky, 1992).

    Args:
        family: Of q's covariance: "diagonal", "low-rank" (a diagonal plus rank many factors) or "full".
        rank: Number of factors of "low-rank".
        num_samples: K.
        optimizer: "adam" or "adaptive".
        learning_rate: Adam's at its highest, or the paper's η, which is then not sought.
        estimator: "reparameterised", with the entropy's exact slope, or "sticking-the-landing" (Roeder et al., 2017), which
            follows the draws through −log q too, so that its noise vanishes where q is the posterior.
    """

    post_hoc: ClassVar[bool] = True

    family: str = "diagonal"
    rank: int = 10
    num_samples: int = 1
    optimizer: str = "adam"
    learning_rate: float | None = None
    estimator: str = "reparameterised"

    @property
    def compiles(self) -> bool:
        """Inductor of torch 2.13 fails on the low-rank family's step."""
        return self.family != "low-rank"

    def __post_init__(self):
        for name, known in (("family", FAMILIES), ("optimizer", OPTIMIZERS), ("estimator", ESTIMATORS)):
            if getattr(self, name) not in known:
                raise NotSupported(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        for name in ("rank", "num_samples"):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= 1, f"{name} must be a positive integer, got {value}")
        rate = self.learning_rate
        require(rate is None or 0 < rate < math.inf, f"learning_rate must be positive and finite, got {rate}")

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Adam's rate: the run's travel grows with the root of its length, and so does how finely it ends."""
        unknowns = size(model.start)
        needed = 5 * unknowns**2 * max(w.element_size() for w in model.start.values())
        if self.family == "full" and needed > LARGEST_FULL:
            raise NotSupported(
                f'family="full" needs {needed / 2**30:,.0f} GiB for {unknowns:,} unknowns; take family="low-rank"'
            )
        if self.optimizer == "adam" and self.learning_rate is None:
            return replace(self, learning_rate=min(HIGHEST_RATE, 2 / math.sqrt(max(1, num_steps))))
        return self

    # --- when ---

    def _trial(self, num_steps: int) -> int:
        searches = self.optimizer == "adaptive" and self.learning_rate is None
        return adaptive.trial_length(num_steps) if searches else 0

    def _window_ends(self, num_steps: int) -> list[int]:
        begin = len(adaptive.CANDIDATES) * self._trial(num_steps)
        count = min(WINDOWS, num_steps - begin)
        return [begin + (w + 1) * (num_steps - begin) // count - 1 for w in range(count)]

    def _averaged_steps(self, num_steps: int) -> list[int]:
        tail = math.ceil(TAIL * num_steps)
        count = min(tail, AVERAGED)
        return [num_steps - tail + math.ceil((a + 1) * tail / count) - 1 for a in range(count)]

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """The ends of the trials, those of the windows after them, and what is averaged."""
        trial = self._trial(num_steps)
        trials = [(t + 1) * trial - 1 for t in range(len(adaptive.CANDIDATES))] if trial else []
        return sorted({*trials, *self._window_ends(num_steps), *self._averaged_steps(num_steps)})

    # --- what ---

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The mean, the spread around it, and what the optimiser and the convergence rule remember."""
        family = make_family(self.family, self.rank)
        log_scale = to_vector({k: torch.full_like(w, math.log(START / _inputs(w) ** 0.5)) for k, w in params.items()})
        state: dict[str, Any] = {"params": params, "spread": family.spread(log_scale)}
        zero = torch.zeros((), dtype=torch.float64, device=log_scale.device)
        state["window"] = {"sum": zero, "means": torch.zeros(WINDOWS, dtype=torch.float64, device=log_scale.device)}
        if self.estimator == "reparameterised":
            precision = _prior_precision(model, params)
            if precision is not None:
                state["precision"] = precision
        moving = _moving(state)
        state["average"] = {"count": zero.clone(), "of": {k: torch.zeros_like(v) for k, v in moving.items()}}
        if self.optimizer == "adaptive":
            state["memory"] = adaptive.start(moving, self.learning_rate, self._trial(model.num_steps))
        else:
            state["first"], state["second"] = ({k: torch.zeros_like(v) for k, v in moving.items()} for _ in range(2))
        return state

    def step(
        self, model: Any, state: dict[str, Any], batch: Any, rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One update."""
        like = state["spread"]["log_scale"]
        count = make_family(self.family, self.rank).noise(like.shape[0])
        z = rng.normal((self.num_samples, count), like.dtype, like.device)
        log_joint, elbo, slopes = self.slopes(model, state, batch, z)
        moving = _moving(state)
        if self.optimizer == "adaptive":
            trial = self._trial(model.num_steps)
            tried = adaptive.climb_(moving, state["memory"], slopes, elbo, rng.step, trial)
            log_joint = log_joint.masked_fill(tried & ~torch.isfinite(log_joint), torch.finfo(log_joint.dtype).min)
        else:
            rate = self.learning_rate * COSINE(rng.step.double() / model.num_steps)  # type: ignore[operator]
            adam = {"params": moving, "first": state["first"], "second": state["second"]}
            ADAM._adam(model, adam, scale_(slopes, 1.0 / model.num_data), rate, rng.step.double() + 1)
        state["window"]["sum"] += elbo
        return state, {"log_joint": log_joint, "elbo": elbo}

    def slopes(self, model: Any, state: dict[str, Any], batch: Any, z: Tensor) -> tuple[Tensor, Tensor, Weights]:
        """Estimates of E_q[log joint], the ELBO and its slope in everything that moves, for given noise z (K, noise)."""
        family = make_family(self.family, self.rank)
        mean, spread = state["params"], state["spread"]
        sigma, centre = spread["log_scale"].exp(), to_vector(mean)
        deviations = family.deviations(spread, sigma, z)
        points = centre + deviations
        values, h = slopes_at(model, points, mean, batch)
        precision = state.get("precision")
        if precision is not None:
            h = torch.addcmul(h, points, precision)  # the likelihood's alone
        landing = self.estimator == "sticking-the-landing"
        if landing:
            h = h + family.pull(spread, sigma, z, deviations)
        slope, log_scale = _mean(h), _mean(h * deviations)
        shape = family.shape_slope(spread, h * sigma, z) if "shape" in spread else None
        if not landing:
            log_scale = log_scale + 1
            entropy = family.shape_entropy_slope(spread)
            shape = shape + entropy if shape is not None and entropy is not None else shape
        if precision is not None:
            # The slopes of E_q[log prior], exactly: the expectation is what it was, without the draws' noise.
            slope = torch.addcmul(slope, centre, precision, value=-1)
            log_scale = torch.addcmul(log_scale, family.variances(spread, sigma), precision, value=-1)
            if shape is not None:
                shape = shape - (precision * sigma * sigma).unsqueeze(-1) * family.shape(spread)
        log_joint = _mean(values)
        elbo = log_joint + family.half_log_det(spread) + ENTROPY * centre.shape[0]
        found = {f"mean {k}": v for k, v in from_vector(slope, mean).items()}
        found["log_scale"] = log_scale
        if shape is not None:
            found.update(family.parameters_slope(spread, shape))
        return log_joint, elbo, found

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """At the end of a trial choose the next scale of steps; then average, and note the mean ELBO of a window."""
        trial = self._trial(model.num_steps)
        if step < len(adaptive.CANDIDATES) * trial:
            moving, memory = adaptive.judge(_moving(state), state["memory"], (step + 1) // trial - 1)
            zero = {**state["window"], "sum": torch.zeros_like(state["window"]["sum"])}
            return {**_put(state, moving), "memory": memory, "window": zero}
        if step in self._averaged_steps(model.num_steps):
            state = {**state, "average": _averaged(state["average"], _moving(state))}
        ends = self._window_ends(model.num_steps)
        if step in ends:
            place = ends.index(step)
            begin = len(adaptive.CANDIDATES) * trial if place == 0 else ends[place - 1] + 1
            total, means = state["window"]["sum"], state["window"]["means"]
            means = torch.cat([means[1:], (total / (step + 1 - begin)).unsqueeze(0)])
            state = {**state, "window": {"sum": torch.zeros_like(total), "means": means}}
        return state

    def posterior(self, model: Any, state: dict[str, Any], draws: Any) -> Gaussian:
        """q, without its evidence, which needs the data."""
        answer = _answer(state)
        return make_family(self.family, self.rank).posterior(model, answer["params"], answer["spread"])

    def survey(self, model: Any, state: dict[str, Any], sweep: Sweep, validation: Sweep | None) -> Gaussian:
        """q, with its bound on the evidence and what speaks against it, from draws that see all data."""
        family = make_family(self.family, self.rank)
        plain = model.bound(buffers=None) if isinstance(model, BayesianModel) else model
        answer, settled = self.posterior(plain, state, None), _answer(state)
        found = examine(model, family, settled["params"], settled["spread"], sweep)
        if getattr(model, "temperature", 1.0) == 1.0 and is_density(model):
            answer._evidence = found.evidence()
        windows = len(self._window_ends(model.num_steps)) if float(state["average"]["count"]) else 0
        answer._diagnostics = judged(plain, answer, found, state["window"]["means"][WINDOWS - windows :])
        return answer


def _mean(rows: Tensor) -> Tensor:
    return rows[0] if rows.shape[0] == 1 else rows.mean(0)


def _inputs(w: Tensor) -> int:
    return w.numel() // w.shape[0] if w.dim() > 1 else 1


def _moving(state: dict[str, Any]) -> Weights:
    """Everything that moves: the means by name, and the spread."""
    return {**{f"mean {k}": v for k, v in state["params"].items()}, **state["spread"]}


def _put(state: dict[str, Any], moving: Weights) -> dict[str, Any]:
    """The inverse of `_moving`."""
    params = {k: moving[f"mean {k}"] for k in state["params"]}
    return {**state, "params": params, "spread": {k: moving[k] for k in state["spread"]}}


def _averaged(average: dict[str, Any], moving: Weights) -> dict[str, Any]:
    """A running mean with one more value."""
    count = average["count"] + 1
    return {"count": count, "of": {k: v + (moving[k] - v) / count.to(v.dtype) for k, v in average["of"].items()}}


def _answer(state: dict[str, Any]) -> dict[str, Any]:
    """The state with the average in place of the last iterate, where there is one."""
    return _put(state, state["average"]["of"]) if float(state["average"]["count"]) else state


def _prior_precision(model: Any, params: Weights) -> Tensor | None:
    """Of unknowns whose prior is a normal of known scale, zero for others, divided by the temperature; None if there is none.

    One number where all have the same.
    """
    found: dict[str, float] = {}
    for g in getattr(model, "groups", ()):
        fixed = getattr(g.prior, "fixed_precision", None)
        if callable(fixed):
            found.update({k: fixed(params[k].shape) or 0.0 for k in g.names})
    if not any(found.values()):
        return None
    vector = to_vector({k: torch.full_like(w, found.get(k, 0.0) / model.temperature) for k, w in params.items()})
    return vector[:1].clone() if bool((vector == vector[0]).all()) else vector
