"""Prior precisions (and the noise) that are found after training: by the evidence, or by held-out predictions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core import likelihoods, priors
from ...core.errors import NotSupported
from ...core.model import BayesianModel
from ...weights.algebra import Weights
from .survey import Found

if TYPE_CHECKING:
    from .laplace import Expansion

GRID = torch.logspace(-4, 4, 17, dtype=torch.float64)  # precisions tried first, and all that validation tries
# Beyond a millionth and a million a precision says nothing more, and its logarithm would run away.
LIMITS = (math.log(1e-6), math.log(1e6))
WIDEST_NOISE = 3.0  # on the log scale, from the noise that training found
NOISE = "likelihood.scale"
DRAWS = 64  # of a held-out prediction


def tuned_prior(
    expansion: Expansion, found: Found, prior: Weights, given: float | str
) -> tuple[BayesianModel, Weights, Found]:
    """The model with the prior that was found, that prior's precisions, and the curvature at the noise that was found."""
    model = expansion.model
    refuse_untunable(model, given, expansion.method.curvature)
    groups = layers(expansion.weights, expansion.method.per if given == "marginal-likelihood" else "network")
    if given == "marginal-likelihood":
        precisions, found = _by_evidence(expansion, found, prior, groups)
    elif given == "validation":
        precisions = [_by_validation(expansion, found, prior)]
    else:
        precisions = [float(given)]
    return (*with_precisions(model, prior, groups, precisions), found)


def refuse_untunable(model: BayesianModel, given: float | str, curvature: str) -> None:
    """Models whose prior cannot be replaced, or not be found like this."""
    if any(k.startswith("prior.") for k in model.hyperpriors):
        raise NotSupported("the prior's scale is an unknown of this model already; leave prior_precision=None")
    if any(g.joint for g in model.groups):
        raise NotSupported("the prior is a posterior, which a precision would forget; leave prior_precision=None")
    if given == "marginal-likelihood" and model.temperature != 1.0:
        raise NotSupported(
            f'a tempered model (T = {model.temperature}) has no evidence to find a precision by; take "validation"'
        )
    if given == "marginal-likelihood" and curvature == "empirical-fisher" and _has_unknown_noise(model):
        raise NotSupported(
            'the noise is unknown, and an empirical Fisher does not know how it bends the log likelihood; take curvature="ggn", '
            'or prior_precision="validation"'
        )


def noise_is_tuned(expansion: Expansion, given: Any) -> bool:
    """Whether the evidence chooses the noise together with the precisions."""
    return given == "marginal-likelihood" and NOISE in expansion.names and _has_unknown_noise(expansion.model)


def _has_unknown_noise(model: BayesianModel) -> bool:
    return isinstance(model.likelihood, likelihoods.Normal) and NOISE in model.hyperpriors


def layers(names: tuple[str, ...], per: str) -> list[list[str]]:
    """Weights that share a precision."""
    if per == "network":
        return [list(names)]
    found: dict[str, list[str]] = {}
    for n in names:
        found.setdefault(n.rpartition(".")[0], []).append(n)
    return list(found.values())


def with_precisions(
    model: BayesianModel, prior: Weights, groups: list[list[str]], precisions: list[float]
) -> tuple[BayesianModel, Weights]:
    """The model with normal priors of these precisions on the groups, and all precisions."""
    own = {n: p for names, p in zip(groups, precisions, strict=True) for n in names}
    new = {k: torch.full_like(v, own[k]) if k in own else v for k, v in prior.items()}
    rest = [n for n in model.weight_names if n not in own]
    if len(groups) == 1 and not rest:
        return model.with_prior(priors.Normal(scale=precisions[0] ** -0.5)), new
    table = {_literal(n): priors.Normal(scale=p**-0.5) for n, p in own.items()}
    kept = {n: g.prior for g in model.groups for n in g.names if n in rest}
    return model.with_prior({**table, **{_literal(n): p for n, p in kept.items()}}), new


def _literal(name: str) -> str:
    """A pattern that means one name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


# --- by the evidence ---


def _by_evidence(
    expansion: Expansion, found: Found, prior: Weights, groups: list[list[str]]
) -> tuple[list[float], Found]:
    """The highest evidence: a grid for one common precision, and from its best point quasi-Newton steps for all."""
    from scipy.optimize import minimize  # not with the library: it takes a quarter of a second

    evidence = PrecisionEvidence(expansion, found, prior, groups)
    with torch.no_grad():
        values = torch.stack([evidence(g.log().expand(len(groups)), evidence.log_noise) for g in GRID])
    start = [float(GRID[int(values.argmax())].log())] * len(groups)
    bounds = [LIMITS] * len(groups)
    if evidence.log_noise is not None:
        centre = float(evidence.log_noise)
        start, bounds = [*start, centre], [*bounds, (centre - WIDEST_NOISE, centre + WIDEST_NOISE)]

    def downhill(at: Any) -> tuple[float, Any]:
        point = torch.as_tensor(at, dtype=torch.float64).requires_grad_()
        with torch.enable_grad():
            value = -evidence(point[: len(groups)], None if evidence.log_noise is None else point[-1])
        (slope,) = torch.autograd.grad(value, point)
        return float(value.detach()), slope.numpy()

    best = minimize(downhill, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-8})
    if evidence.log_noise is not None:
        found = expansion.set_noise(found, math.exp(best.x[-1]))
    return [math.exp(p) for p in best.x[: len(groups)]], found


class PrecisionEvidence:
    """The log evidence as a function of log precisions and the log noise scale, at fixed weights."""

    def __init__(self, expansion: Expansion, found: Found, prior: Weights, groups: list[list[str]]):
        model, params = expansion.model, expansion.params
        self.groups = groups
        self.norms = torch.stack(
            [torch.stack([(params[n].double() ** 2).sum() for n in g]).sum() for g in groups]
        ).cpu()
        self.sizes = torch.tensor([float(sum(params[n].numel() for n in g)) for g in groups], dtype=torch.float64)
        self.spectrum = expansion.spectrum(found, groups)
        self.log_likelihood = found.log_likelihood.double().cpu()
        self.log_noise: Tensor | None = None
        if noise_is_tuned(expansion, "marginal-likelihood"):
            self.log_noise = model.constrain({NOISE: params[NOISE]})[NOISE].double().log().detach().cpu()
            self.targets = found.unknowns[NOISE].double().cpu() / 2  # the information of a log scale is 2 per target
            self.squares = -2 * self.log_noise.mul(2).exp() * (
                self.log_likelihood + self.targets * (self.log_noise + 0.5 * math.log(2 * math.pi))
            )  # fmt: skip

    def __call__(self, log_precisions: Tensor, log_noise: Tensor | None) -> Tensor:
        """log p(D | w*) + log p(w*) − ½ log |Λ|, up to what depends on neither."""
        value, louder = self.log_likelihood, torch.ones((), dtype=torch.float64)
        if log_noise is not None:
            assert self.log_noise is not None
            value = (
                -self.targets * (log_noise + 0.5 * math.log(2 * math.pi)) - 0.5 * self.squares * (-2 * log_noise).exp()
            )
            louder = (2 * (self.log_noise - log_noise)).exp()  # curvature goes with the inverse noise variance
        precisions = log_precisions.exp()
        log_prior = 0.5 * (self.sizes * log_precisions - precisions * self.norms).sum()
        return value + log_prior - 0.5 * self.spectrum(precisions, louder)


# --- by held-out predictions ---


def _by_validation(expansion: Expansion, found: Found, prior: Weights) -> float:
    groups = layers(expansion.weights, "network")
    scores = [_held_out(expansion, found, prior, groups, float(g)) for g in GRID]
    return float(GRID[max(range(len(GRID)), key=lambda i: scores[i])])


def _held_out(expansion: Expansion, found: Found, prior: Weights, groups: Any, precision: float) -> float:
    """The mean log predictive density of the validation data."""
    model, precisions = with_precisions(expansion.model, prior, groups, [precision])
    answer, _ = expansion.gaussian(found, precisions, model)
    answer.mean_bank = dict(expansion.model.buffers or {}) or None
    total, count = 0.0, 0.0
    assert expansion.validation is not None
    for inputs, targets, weights in expansion.validation():
        predictive = answer.predict(inputs, num_samples=DRAWS, linearised=True)
        total += float((predictive.log_prob(targets) * weights).sum())
        count += float(weights.sum())
    return total / count
