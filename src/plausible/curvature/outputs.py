"""The likelihood's part of the curvature: Hessians of −log p(y | f) in a network's outputs f.

A generalised Gauss-Newton matrix is Σᵢ wᵢ Jᵢᵀ Hᵢ Jᵢ, with Jᵢ the Jacobian of example i's outputs and Hᵢ the Hessian made
here. Columns of a root of Hᵢ, pulled back through the network, are all that an engine needs.

Hᵢ is positive semidefinite. It is the Hessian itself where −log p is convex in f: Categorical, Bernoulli, Poisson,
Normal, CensoredNormal of a given scale. It is the expected Hessian, the Fisher information, for HeteroscedasticNormal
and StudentT. For every other likelihood it is the Hessian by automatic differentiation without its negative
eigenvalues, and `clipped` says how negative they were.

The likelihood must be bound: `bound_likelihood` fills in unknown scales.
"""

import math
from collections.abc import Callable, Iterator, Mapping
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
from plausible.core.likelihoods.heteroscedastic_normal import mean_and_scale
from plausible.core.model import BayesianModel
from plausible.core.unknowns import bind, known
from plausible.weights.algebra import under_vmap
from plausible.weights.rng import Keys, forked

from .output_hessians import (
    DiagonalHessian,
    OutputHessian,
    SoftmaxHessian,
    clipped_dense,
    clipped_diagonal,
    negative_part,
)

# --- the Hessian in the outputs ---


def output_hessian(likelihood: Any, outputs: Tensor, y: Tensor) -> OutputHessian:
    """Hᵢ for every example, in the form in which products with it and with its root are cheapest."""
    return _RULES.get(type(likelihood), _by_autodiff)(likelihood, outputs, y)


def root(likelihood: Any, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Columns (R, N, ...) with Σᵣ Sᵣ Sᵣᵀ = Hᵢ for every example, and `OutputHessian.clipped`."""
    found = output_hessian(likelihood, outputs, y)
    return found.root(), found.clipped


def roots(likelihood: Any, outputs: Tensor, y: Tensor, columns: int = 32) -> tuple[Iterator[Tensor], Tensor]:
    """The columns of `root` in blocks (r, N, ...) of at most `columns`, and `OutputHessian.clipped`.

    R is the number of an example's outputs, pixels included, so for images no one should hold all columns at once.
    """
    found = output_hessian(likelihood, outputs, y)
    return found.roots(columns), found.clipped


def hessian(likelihood: Any, outputs: Tensor, y: Tensor) -> Tensor:
    """Hᵢ as matrices, (N, K, K), over the flattened outputs of an example."""
    return output_hessian(likelihood, outputs, y).dense()


def hessian_product(likelihood: Any, outputs: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Hᵢ vᵢ for every example; v is shaped like the outputs and may have further axes in front."""
    return output_hessian(likelihood, outputs, y).product(v)


def gradient(likelihood: Any, outputs: Tensor, y: Tensor) -> Tensor:
    """∂ log p(yᵢ | fᵢ) / ∂ fᵢ for every example, in the shape of the outputs."""
    if under_vmap():
        return torch.func.grad(lambda f: likelihood.log_prob(f, y).sum())(outputs)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        return torch.autograd.grad(likelihood.log_prob(leaf, y).sum(), leaf)[0]


def _softmax(likelihood: Categorical, outputs: Tensor, y: Tensor) -> OutputHessian:
    probs = torch.softmax(outputs, dim=1)
    if likelihood.ignore_index is not None:
        probs = probs.masked_fill((y == likelihood.ignore_index).unsqueeze(1), 0)
    return SoftmaxHessian(probs, outputs.new_zeros(()))


def _bernoulli(likelihood: Bernoulli, outputs: Tensor, y: Tensor) -> OutputHessian:
    # Not p (1 - p), which is 0 or 1e-7 where p rounds to 1.
    return DiagonalHessian(torch.sigmoid(outputs) * torch.sigmoid(-outputs), outputs.new_zeros(()))


def _poisson(likelihood: Poisson, outputs: Tensor, y: Tensor) -> OutputHessian:
    return DiagonalHessian(torch.exp(outputs), outputs.new_zeros(()))


def _normal(likelihood: Normal, outputs: Tensor, y: Tensor) -> OutputHessian:
    return DiagonalHessian(_filled(outputs, known(likelihood, "scale") ** -2), outputs.new_zeros(()))


def _student_t(likelihood: StudentT, outputs: Tensor, y: Tensor) -> OutputHessian:
    df, scale = known(likelihood, "df"), known(likelihood, "scale")
    return DiagonalHessian(_filled(outputs, (df + 1) / (df + 3) * scale**-2), outputs.new_zeros(()))


def _heteroscedastic_normal(likelihood: HeteroscedasticNormal, outputs: Tensor, y: Tensor) -> OutputHessian:
    """1/σ² for a mean and 2 (σ'/σ)² for a raw scale; in expectation the two do not meet."""
    _, scale = mean_and_scale(outputs)
    slope = torch.func.grad(lambda f: mean_and_scale(f)[1].sum())(outputs).chunk(2, dim=-1)[1]
    return DiagonalHessian(torch.cat([scale.pow(-2), 2 * (slope / scale) ** 2], dim=-1), outputs.new_zeros(()))


def _censored_normal(likelihood: CensoredNormal, outputs: Tensor, y: Tensor) -> OutputHessian:
    # In float64, because far past a limit the second derivative is a small difference; y as it is, since it may equal a
    # limit in its own precision only.
    wide = outputs.double()
    if likelihood.scale is None:
        return clipped_dense(_observed_hessian(likelihood, wide, y).to(outputs.dtype), outputs.shape)
    # Targets do not meet, so the row sums of the Hessian are its diagonal.
    rows = _second_derivative(lambda f: likelihood.log_prob(f, y).sum(), wide)
    return clipped_diagonal(-rows(torch.ones_like(wide)).to(outputs.dtype))


def _by_autodiff(likelihood: Any, outputs: Tensor, y: Tensor) -> OutputHessian:
    return clipped_dense(_observed_hessian(likelihood, outputs, y), outputs.shape)


def _observed_hessian(likelihood: Any, outputs: Tensor, y: Tensor) -> Tensor:
    """(N, K, K), as it is."""
    rows = _second_derivative(lambda f: likelihood.log_prob(f, y).sum(), outputs)
    # Examples do not meet in log_prob, so one backward pass gives row k of all of them. Only that pass is vectorised:
    # a user's own forward pass may look at values, as `torch.distributions` do when they validate.
    size = math.prod(outputs.shape[1:])
    units = torch.eye(size, dtype=outputs.dtype, device=outputs.device).reshape(size, 1, *outputs.shape[1:])
    found = torch.func.vmap(lambda unit: rows(unit.expand(outputs.shape)))(units)
    return -found.reshape(size, outputs.shape[0], size).movedim(0, 1)


def _filled(outputs: Tensor, value: float | Tensor) -> Tensor:
    """`value` for every output; a number never becomes a tensor by itself, which a CUDA graph could not record."""
    return (torch.ones_like(outputs) * value).to(outputs.dtype)


def _second_derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ ∇² function · v, by reverse mode twice: the mode that every operation has."""
    pull_back = torch.func.vjp(torch.func.grad(function), at)[1]
    return lambda v: pull_back(v)[0]


# By exact type: a subclass may have another log_prob, of which only automatic differentiation knows.
_RULES: dict[type, Callable[[Any, Tensor, Tensor], OutputHessian]] = {
    Categorical: _softmax,
    Bernoulli: _bernoulli,
    Poisson: _poisson,
    Normal: _normal,
    StudentT: _student_t,
    HeteroscedasticNormal: _heteroscedastic_normal,
    CensoredNormal: _censored_normal,
}


# --- the Fisher information from simulated targets ---


def sampled_root(likelihood: Any, outputs: Tensor, rng: Keys, num_samples: int = 1, y: Tensor | None = None) -> Tensor:
    """Columns (num_samples, N, ...) whose Σᵣ Sᵣ Sᵣᵀ has the Fisher information as its expectation.

    They are gradients of log p(ỹ | f) at targets ỹ ~ p(· | f), divided by √num_samples.

    Args:
        likelihood: Bound. Targets of Poisson, StudentT, CensoredNormal and unknown likelihoods come from
            `distribution(outputs).sample`, which reads the key back and so runs neither under `vmap` nor in a capture.
        outputs: The network's.
        rng: Spends one call.
        num_samples: How many targets for each example.
        y: The data's targets, of which only `ignore_index` is read.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    if type(likelihood) is Categorical and likelihood.ignore_index is not None:
        if y is None:
            raise ValueError(f"with ignore_index={likelihood.ignore_index} give y, which says where to ignore")
        # A simulated label may be the number that would be ignored in the data; here it counts as any other.
        columns = sampled_root(Categorical(), outputs, rng, num_samples)
        return columns.masked_fill((y == likelihood.ignore_index).unsqueeze(1), 0)
    outputs = outputs.detach()
    targets = _SAMPLERS.get(type(likelihood), _sampled_by_torch)(likelihood, outputs, rng, num_samples)
    return torch.stack([gradient(likelihood, outputs, drawn) for drawn in targets]) / math.sqrt(num_samples)


def _sampled_classes(likelihood: Categorical, outputs: Tensor, rng: Keys, num: int) -> Tensor:
    """By inversion: the class is the number of cumulative probabilities below a uniform number."""
    cumulative = torch.softmax(outputs, dim=1).cumsum(dim=1)
    uniform = rng.uniform((num, outputs.shape[0], 1, *outputs.shape[2:]), outputs.dtype, outputs.device)
    # The last cumulative probability is one, whatever it rounds to.
    return (uniform > cumulative.narrow(1, 0, outputs.shape[1] - 1)).sum(dim=2)


def _sampled_bits(likelihood: Bernoulli, outputs: Tensor, rng: Keys, num: int) -> Tensor:
    uniform = rng.uniform((num, *outputs.shape), outputs.dtype, outputs.device)
    return (uniform < torch.sigmoid(outputs)).to(outputs.dtype)


def _sampled_normals(likelihood: Normal, outputs: Tensor, rng: Keys, num: int) -> Tensor:
    return outputs + known(likelihood, "scale") * rng.normal((num, *outputs.shape), outputs.dtype, outputs.device)


def _sampled_heteroscedastic(likelihood: HeteroscedasticNormal, outputs: Tensor, rng: Keys, num: int) -> Tensor:
    mean, scale = mean_and_scale(outputs)
    return mean + scale * rng.normal((num, *mean.shape), outputs.dtype, outputs.device)


def _sampled_by_torch(likelihood: Any, outputs: Tensor, rng: Keys, num: int) -> Tensor:
    with forked(*rng.key().tolist(), devices=[outputs.device]):
        return likelihood.distribution(outputs).sample((num,))


_SAMPLERS: dict[type, Callable[[Any, Tensor, Keys, int], Tensor]] = {
    Categorical: _sampled_classes,
    Bernoulli: _sampled_bits,
    Normal: _sampled_normals,
    HeteroscedasticNormal: _sampled_heteroscedastic,
}


# --- the likelihood's own unknowns ---


def bound_likelihood(model: BayesianModel, params: Mapping[str, Tensor]) -> Any:
    """The model's likelihood with the natural values of its unknowns filled in."""
    return _bound(model, {name: params[name] for name in _unknown_names(model)})


def unknown_curvature(
    model: BayesianModel, params: Mapping[str, Tensor], outputs: Tensor, y: Tensor, weights: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Σᵢ wᵢ × the information of example i about each unknown `likelihood.*`, on its unconstrained scale.

    The expected information where there is a formula, the scale of Normal and both unknowns of StudentT; otherwise the
    observed second derivative, summed over the examples and clipped at zero. Each entry of an unknown stands by itself.
    The cross terms with the outputs are zero in expectation for Normal and StudentT, by symmetry; for other likelihoods
    leaving them out is an approximation.

    Returns:
        The information by name, each in the shape of the unknown, and `clipped` as in `OutputHessian`.
    """
    own = {name: params[name] for name in _unknown_names(model)}
    weights = outputs.new_ones(outputs.shape[:1]) if weights is None else weights
    likelihood = _bound(model, own)
    found, clipped = {}, outputs.new_zeros(())
    for name in own:
        formula = _INFORMATION.get((type(likelihood), name))
        if formula is not None:
            elements = formula(likelihood, outputs) * weights.reshape(-1, *[1] * (outputs.ndim - 1))
            slope = torch.func.grad(lambda u, name=name: model.constrain({name: u})[name].sum())(own[name])
            found[name] = elements.sum_to_size(own[name].shape) * slope**2
        else:
            second = _observed_information(model, own, name, outputs, y, weights)
            clipped = torch.maximum(clipped, negative_part(second))
            found[name] = second.clamp_min(0)
    return found, clipped


def empirical_unknown_curvature(
    model: BayesianModel, params: Mapping[str, Tensor], outputs: Tensor, y: Tensor, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Σᵢ wᵢ (∂ log p(yᵢ | fᵢ) / ∂ u)² for each unknown u = `likelihood.*`, on its unconstrained scale."""
    found = {}
    for name, scores in unknown_scores(model, params, outputs, y).items():
        squares = [(s * s if weights is None else weights * s * s).sum() for s in scores]
        found[name] = torch.stack(squares).reshape(params[name].shape)
    return found


def unknown_scores(
    model: BayesianModel, params: Mapping[str, Tensor], outputs: Tensor, y: Tensor
) -> dict[str, list[Tensor]]:
    """∂ log p(yᵢ | fᵢ) / ∂ uⱼ of all examples (N,), for each entry j of each unknown u = `likelihood.*`."""
    own = {name: params[name] for name in _unknown_names(model)}
    found = {}
    for name, value in own.items():

        def log_probs(u: Tensor, name: str = name) -> Tensor:
            return _bound(model, {**own, name: u}).log_prob(outputs, y)

        found[name] = _derivatives_of_each(log_probs, value)
    return found


def _derivatives_of_each(function: Callable[[Tensor], Tensor], at: Tensor) -> list[Tensor]:
    """∂ function(at)ᵢ / ∂ atⱼ for all i, as one tensor for each j.

    Pulling c back gives Σᵢ cᵢ ∂ᵢ, whose gradient in c holds all ∂ᵢ: forward mode, by reverse mode twice.
    """
    pulled = torch.func.vjp(function, at)
    collect = torch.func.vjp(lambda c: pulled[1](c)[0], torch.ones_like(pulled[0]))[1]
    return [collect(unit)[0] for unit in _units_of(at)]


def _observed_information(
    model: BayesianModel, own: dict[str, Tensor], name: str, outputs: Tensor, y: Tensor, weights: Tensor
) -> Tensor:
    """−∂²/∂u² Σᵢ wᵢ log p(yᵢ | fᵢ, u), entry by entry."""
    value = own[name]
    rows = _second_derivative(lambda u: (weights * _bound(model, {**own, name: u}).log_prob(outputs, y)).sum(), value)
    return torch.stack([-(unit * rows(unit)).sum() for unit in _units_of(value)]).reshape(value.shape)


def _units_of(value: Tensor) -> Tensor:
    return torch.eye(value.numel(), dtype=value.dtype, device=value.device).reshape(-1, *value.shape)


def _unknown_names(model: BayesianModel) -> list[str]:
    return [name for name in model.hyperpriors if name.startswith("likelihood.")]


def _bound(model: BayesianModel, own: Mapping[str, Tensor]) -> Any:
    natural = model.constrain(own)
    return bind(model.likelihood, {name.removeprefix("likelihood."): value for name, value in natural.items()})


def _information_of_scale(likelihood: Normal, outputs: Tensor) -> Tensor:
    return _filled(outputs, 2 * known(likelihood, "scale") ** -2)


def _information_of_t_scale(likelihood: StudentT, outputs: Tensor) -> Tensor:
    df, scale = known(likelihood, "df"), known(likelihood, "scale")
    return _filled(outputs, 2 * df / (df + 3) * scale**-2)


def _information_of_df(likelihood: StudentT, outputs: Tensor) -> Tensor:
    """[ψ′(ν/2) − ψ′((ν+1)/2)] / 4 − (ν+5) / (2ν (ν+1) (ν+3)), which is of order ν⁻⁴."""
    df = known(likelihood, "df").double()  # the terms are of order ν⁻² and cancel
    trigamma = torch.polygamma(1, df / 2) - torch.polygamma(1, (df + 1) / 2)
    information = trigamma / 4 - (df + 5) / (2 * df * (df + 1) * (df + 3))
    return _filled(outputs, information.clamp_min(0))


_INFORMATION: dict[tuple[type, str], Callable[[Any, Tensor], Tensor]] = {
    (Normal, "likelihood.scale"): _information_of_scale,
    (StudentT, "likelihood.scale"): _information_of_t_scale,
    (StudentT, "likelihood.df"): _information_of_df,
}
