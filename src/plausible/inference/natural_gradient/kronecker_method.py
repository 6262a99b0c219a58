"""What K-FAC and noisy K-FAC share: when they look at the curvature, what they keep of it, and how they step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.diagnostics import Diagnostics
from ...core.errors import NotSupported
from ...core.free_memory import free_bytes
from ...core.method import Method, require
from ...core.model import BayesianModel
from ...core.posteriors import Kronecker
from ...core.schedules import schedule as find_schedule
from ...curvature import KINDS, Curvature
from ...curvature import kronecker as factor_pairs
from ...curvature.rules.embedding import Embedding
from ...curvature.tracing import plan_for, trace
from ...weights import tree
from ...weights.algebra import Weights, add_, average_, dot
from ...weights.rng import Keys
from . import trust
from .answer import checked
from .gaussian_prior import GaussianPrior
from .hindsight import Hindsight
from .kronecker_preconditioner import (
    Factors,
    all_finite,
    averaged,
    block_key,
    gaussian,
    precondition,
    require_alike_rows,
    roots,
    squared,
)
from .start import stiffness

log = logging.getLogger("plausible")

# For curvature_decay=None: how many looks count. Early curvature is of other weights, so they are a share of a run's, but a
# short run has no better than its first epoch's; twenty are Martens & Grosse's (2015, section 5) 0.95. Of batches of a few
# examples more count, and a larger share of a run's, until they are as many examples or epochs.
AVERAGED_SHARE, FEWEST_AVERAGED, MOST_AVERAGED = 0.2, 5, 20
NOISY_SHARE, EXAMPLES_AVERAGED, EPOCHS_AVERAGED = 0.4, 640, 4
HEARD = 0.5  # share of a batch's places that hold examples, from which a look says something of steps' lengths
SMALLEST_RATE, LARGEST_RATE = 0.03, 0.3
TRAVEL = 60.0  # learning rate times steps, for learning_rate=None, between these two
DAMPING = 1e-3  # per example, beside curvatures of an example's log likelihood in its own unit
FARTHEST = 2.5  # whole Newton steps of a logarithm of noise; slopes of a single example are seldom farther
TARGETS = 1 << 16  # the call number from which targets are drawn, past anything that draws weights
CLOSEST = (
    10  # that many steps have a look at first, then every so-manieth while there have been fewer than update_every
)


def looks_at(step: int, update_every: int) -> bool:
    """Whether this step looks at the curvature."""
    if step < update_every:
        return step < CLOSEST or step % CLOSEST == 0
    return step % update_every == 0


@dataclass(frozen=True, kw_only=True)
class KroneckerMethod(Hindsight, Method):
    """A natural gradient whose metric is Kronecker factors, renewed now and then.

    With ĝ the gradient of the log joint of all data and Λ = G ⊗ A + prior (see `kronecker_preconditioner`),

        every `update_every` steps    A, G ← (1 − s) (A, G) + s (those of this batch),   s = r max(1 / Σ r, 1 − curvature_decay)
        every step                    m ← β m + (1 − β) ĝ,    w ← w + η (Λ + N γ I)⁻¹ m / (1 − βᵗ)

    with the gradient itself for m where w is of the likelihood, as the logarithm of a noise is, and then of a bounded length;
    where r is 1 for a full batch, the filled share of one that an epoch's end cuts short, and Σ r goes over all looks so far: the
    first looks make the plain mean over all examples that they saw.

    Args:
        learning_rate: η at its highest; 1 is a whole Newton step.
        momentum: β.
        curvature_decay: Of a long run, per look at a full batch; None: by the numbers of looks and of examples in a batch.
        damping: γ, added to the mean curvature of an example; it shortens steps and is no part of the answer. None: 1e-3, of a
            regression 1e-3 / scale² with the noise's scale at the start.
        update_every: Steps from one look at the curvature to the next. At first, when it changes most, looks are closer: the
            first ten steps all have one, and of the first `update_every` every tenth.
        curvature: "ggn", "mc-fisher" (one pass backwards however many outputs there are) or "empirical-fisher".
        schedule: "constant", "cosine", "one-cycle", "step", "warm-up", or a function of progress in [0, 1).
        trust: By how many nats per example a step may change predictions, if Λ is right; longer ones are shortened (Ba,
            Grosse & Martens, 2017). Λ is that of the last look, and n steps in one direction change predictions by n² times as
            much: deep networks without norms leave the plateau that they start on, and its curvature, all at once. None:
            anything where the learning rate is given; else little, and more while residuals are far larger than the likelihood
            expects and every look confirms the last one's curvature.
    """

    learning_rate: float | None = None
    momentum: float = 0.9
    curvature_decay: float | None = None
    damping: float | None = None
    update_every: int = 10
    curvature: str = "ggn"
    schedule: Any = "cosine"
    trust: float | None = None

    def __post_init__(self):
        rate, decay, damping = self.learning_rate, self.curvature_decay, self.damping
        require(rate is None or rate > 0, f"learning_rate must be positive, got {rate}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        require(decay is None or 0 <= decay < 1, f"curvature_decay must lie in [0, 1), got {decay}")
        require(damping is None or damping >= 0, f"damping must not be negative, got {damping}")
        every = self.update_every
        require(isinstance(every, int) and every >= 1, f"update_every must be a positive integer, got {every}")
        require(self.trust is None or self.trust > 0, f"trust must be positive, got {self.trust}")
        require(self.curvature in KINDS, f"curvature must be one of {KINDS}, got {self.curvature!r}")
        find_schedule(self.schedule)

    def resolved(self, model: Any, num_steps: int) -> Self:
        """Rates by the length of the run; what this model cannot have is refused before anything runs."""
        if not isinstance(model, BayesianModel):
            raise NotSupported(
                f"{type(self).__name__} goes by the layers of a network, which a LogDensity has not; take "
                "pl.IVON, pl.NaturalGradientVI, pl.ADVI or pl.HMC"
            )
        GaussianPrior.of(model, model.start)
        looks = len(self.probed_steps(num_steps))
        rate, decay, damping = self.learning_rate, self.curvature_decay, self.damping
        if rate is None:
            rate = min(LARGEST_RATE, max(SMALLEST_RATE, TRAVEL / max(1, num_steps)))
        if decay is None:
            decay = 1 - 1 / _averaged_looks(looks, model.num_data, model.steps_per_epoch)
        unlimited = self.trust is None and self.learning_rate is not None
        return replace(
            self,
            trust=math.inf if unlimited else self.trust,
            learning_rate=rate,
            curvature_decay=decay,
            damping=DAMPING * float(stiffness(model, model.start)) if damping is None else float(damping),
        )

    def _least_trust(self, num_steps: int) -> float:
        """By how many nats a step may always change predictions, for None."""
        return trust.MOST

    def probed_steps(self, num_steps: int) -> Sequence[int]:
        """The first few, then every `update_every`-th, and the last."""
        last = num_steps - 1
        return [step for step in range(num_steps) if looks_at(step, self.update_every) or step == last]

    # --- the state ---

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """The mean, its momentum, and no curvature yet."""
        factors = tree.tree_map(torch.zeros_like, self._empty(model, params))
        prior = GaussianPrior.of(model, params).precision
        require_alike_rows(factors, prior, params, type(self).__name__)
        like = next(iter(params.values()))
        none = torch.zeros((), dtype=torch.float64, device=like.device)
        first = {k: torch.zeros_like(w) for k, w in params.items()}
        made = self._metric(model, _averages(factors), prior, params)
        own = {} if self.trust is not None else {"trusted": trust.first(params, self._least_trust(model.num_steps))}
        return {
            "params": params,
            "first": first,
            "factors": factors,
            "looks": none,
            "seen": none.clone(),
            "lost": none.clone(),
            **made,
            **own,
        }

    def _empty(self, model: BayesianModel, params: Weights) -> Factors:
        """Factors in their shapes: which weights have some depends on how the network uses them."""
        # The network's keys are for a step; any will do to see its layers.
        key = Keys(torch.zeros(2, dtype=torch.int32, device=_device(params)), _zero(params)).key()
        self._require_memory(plan_for(model, params, model.example, tuple(model.weight_names)), params)
        traced = trace(model, params, model.example, key if model.needs_key else None)
        nothing = torch.zeros_like(traced.outputs).unsqueeze(0)
        found = _named(model, traced.plan, factor_pairs.factors(traced, [nothing], None))
        found["diagonal"].update({k: torch.zeros_like(w) for k, w in params.items() if k not in model.weight_names})
        return found

    def _require_memory(self, plan: Any, params: Weights) -> None:
        """Say how much the factors need before it is asked for."""
        needed, widest = 0, ("", 0)
        for b in factor_pairs.blocks(plan, list(params)):
            w = params[b.weight]
            columns = w.numel() // w.shape[0] + (b.bias is not None)
            # How often each row of an embedding occurs is a diagonal.
            diagonal = isinstance(plan.calls[b.calls[0]].rule, Embedding)
            sizes = (columns,) if diagonal else (w.shape[0], columns)
            widest = max(widest, (b.weight, max(sizes)), key=lambda found: found[1])
            # The averages, those of a batch and what is made of them, and one factor with its inverse in float64.
            needed += 4 * sum(s * s for s in sizes) * w.element_size()
        needed += 3 * 8 * widest[1] ** 2
        free = free_bytes(_device(params))
        if needed > free:
            raise ValueError(
                f"the Kronecker factors need {needed:,} bytes here, and {free:,} are free; the widest is {widest[1]} wide, of "
                f"{widest[0]}: take pl.VOGN() or pl.IVON(), or keep that weight fixed with parameters="
            )

    def _metric(self, model: Any, factors: Factors, prior: Mapping[str, Any], like: Weights) -> dict[str, Any]:
        """What the state holds of averaged factors: the inverse that a step is multiplied by."""
        assert self.damping is not None  # `resolved` has made it a number
        return {"inverse": squared(roots(factors, prior, like, self.damping * model.num_data / model.temperature))}

    # --- a look at the curvature ---

    def _looked(
        self, model: BayesianModel, state: dict[str, Any], batch: Any, points: Sequence[Weights], rng: Keys
    ) -> dict[str, Any]:
        """Bring the running averages and the roots up to date with the curvature of a batch at some points."""
        assert self.curvature_decay is not None  # `resolved` has made it a number
        own = rng.later(TARGETS)
        each, misfits = zip(*(self._curvature(model, p, batch, own) for p in points), strict=True)
        found = tree.tree_map(lambda *t: sum(t[1:], t[0]) / len(t), *each)
        # A batch that is not a number tells in its log joint, by which `fit` stops; nothing else may go wrong by it.
        fine = all_finite(found)
        looks, lost = state["looks"] + fine, state["lost"] + ~fine
        # A batch that an epoch's end leaves with one example is scaled up to N as any other, but says as little as one example.
        filled = _filled(model)
        seen = state["seen"] + filled * fine
        share = filled * (1 / seen.clamp(min=torch.finfo(seen.dtype).tiny)).clamp(min=1 - self.curvature_decay)
        new = averaged(state["factors"], found, share)
        factors = tree.tree_map(lambda n, o: torch.where(fine, n, o).to(o.dtype), new, state["factors"])
        prior = _tempered(GaussianPrior.of(model, state["params"]).precision, model.temperature)
        made = self._metric(model, _averages(factors), prior, state["params"])
        if self.trust is None:
            least, before = self._least_trust(model.num_steps), _averages(state["factors"])
            at = trust.renewed(
                state["trusted"], state["params"], before, _averages(found), sum(misfits) / len(misfits), least
            )
            heard = fine & (filled >= HEARD)  # a few examples neither confirm nor refute a curvature
            made["trusted"] = tree.tree_map(lambda n, o: torch.where(heard, n, o), at, state["trusted"])
        return {**state, "factors": factors, "looks": looks, "seen": seen, "lost": lost, **made}

    def _curvature(self, model: BayesianModel, params: Weights, batch: Any, rng: Keys) -> tuple[Factors, Tensor]:
        """Factors of a batch, and how large its residuals are."""
        key = model.rng.key() if model.needs_key and model.rng is not None else None
        here = Curvature(model, params, batch, self.curvature, rng, key=key)
        found = _named(model, here.traced.plan, here.kronecker())
        found["diagonal"].update({k: v / model.temperature for k, v in here.unknowns().items()})
        return found, here.misfit()

    # --- a step ---

    def _climb_(self, model: Any, state: dict[str, Any], slope: Weights, rng: Keys) -> None:
        """Momentum, metric, and the step."""
        assert self.learning_rate is not None  # `resolved` has made it a number
        trusted = state["trusted"]["trust"] if self.trust is None else self.trust
        count = rng.step.double()
        begun = 1 - self.momentum ** (count + 1)
        rate = self.learning_rate * find_schedule(self.schedule)(count / model.num_steps) / begun
        planned = rate * begun
        average_(state["first"], slope, self.momentum)
        step = precondition(state["inverse"], self._slopes(model, state, slope))
        own, noise = ({k: s for k, s in step.items() if (k in model.weight_names) == ours} for ours in (True, False))
        # Half of rate² mᵀ Λ⁻¹ m is by how much the step changes the predictions of all data, in nats, if Λ is right; a
        # temperature has divided both m and Λ.
        gain = dot({k: state["first"][k] for k in own}, own).clamp(min=torch.finfo(torch.float32).tiny)
        rate = rate * (2 * trusted * model.num_data / (rate * rate * model.temperature * gain)).sqrt().clamp(max=1.0)
        add_({k: state["params"][k] for k in own}, own, rate.to(_dtype(own)))
        if noise:
            add_({k: state["params"][k] for k in noise}, noise, planned.to(_dtype(noise)))

    def _slopes(self, model: Any, state: dict[str, Any], slope: Weights) -> Weights:
        """The momentum of weights, and for the likelihood's unknowns the slope itself, so far as a step may follow it.

        Targets in large units push the logarithm of a noise by (residual / noise)², which is over in a few steps, and would go
        on in a momentum for many more.
        """
        found = dict(state["first"])
        for name in found:
            if name not in model.weight_names:
                most = FARTHEST * state["factors"]["diagonal"][name]
                found[name] = slope[name].clamp(-most, most)
        return found

    # --- the answer ---

    def _gaussian(self, model: Any, state: dict[str, Any]) -> Kronecker:
        """The Gaussian whose precision is the averaged curvature and the prior's."""
        looks, lost, name = int(state["looks"]), int(state["lost"]), type(self).__name__
        if not looks and not lost:
            raise ValueError(
                f"{name} gathers the curvature while it trains, and made no step; for a trained network take pl.Laplace()"
            )
        told = f"the curvature of {lost} of the {looks + lost} batches that {name} looked at was not finite"
        if not looks:
            raise FloatingPointError(
                f"{told}, so there is no posterior; try a tenth of the learning rate, or float32 instead of fp16"
            )
        prior = _tempered(GaussianPrior.of(model, state["params"]).precision, model.temperature)
        answer = checked(gaussian(model, state["params"], _averages(state["factors"]), prior))
        if lost:
            log.warning("%s; the posterior is by that of the others", told)
            answer._diagnostics = Diagnostics(messages=(f"{told}; the posterior is by that of the others",), ok=False)
        return answer


def _averaged_looks(looks: int, num_data: float | None, steps_per_epoch: int) -> float:
    """How many looks at full batches are to count, for curvature_decay=None."""
    usual = min(MOST_AVERAGED, AVERAGED_SHARE * looks)
    epochs = EPOCHS_AVERAGED * (steps_per_epoch - 1)  # one batch of all data has no noise
    noisy = min(epochs, EXAMPLES_AVERAGED * steps_per_epoch / (num_data or 1.0), NOISY_SHARE * looks)
    return max(1.0, min(FEWEST_AVERAGED, steps_per_epoch), usual, noisy)


def _filled(model: BayesianModel) -> Tensor:
    """The share of the batch's places that hold examples, where `fit` has said it."""
    filled = getattr(model, "filled", None)
    return torch.ones((), dtype=torch.float64, device=_device(model.start)) if filled is None else filled


def _named(model: BayesianModel, plan: Any, found: Any) -> Factors:
    """The engine's factors, tempered, under the keys of blocks: sums, beside the count of what their inputs are sums of."""
    blocks = {}
    for b in factor_pairs.blocks(plan, model.weight_names):
        own = found["blocks"][b.weight]
        blocks[block_key(b.weight, b.bias)] = {**own, "rows": own["rows"] / model.temperature}
    return {"blocks": blocks, "diagonal": {k: v / model.temperature for k, v in found["diagonal"].items()}}


def _averages(factors: Factors) -> Factors:
    """Factors with inputs averaged instead of summed, which batches of light examples, or of none, change by as little."""
    blocks = {}
    for key, own in factors["blocks"].items():
        count = own["count"].clamp(min=torch.finfo(own["count"].dtype).tiny)
        blocks[key] = {"rows": own["rows"], "columns": own["columns"] / count}
    return {"blocks": blocks, "diagonal": factors["diagonal"]}


def _tempered(precision: Any, temperature: float) -> dict[str, float | Tensor]:
    return {k: p / temperature for k, p in precision.items()}


def _zero(params: Weights) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=_device(params))


def _device(params: Weights) -> torch.device:
    return next(iter(params.values())).device


def _dtype(params: Weights) -> torch.dtype:
    return next(iter(params.values())).dtype
