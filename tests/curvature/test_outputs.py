"""Output Hessians against automatic differentiation, quadrature and simulation."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from tests.oracles import FOUR
from torch import Tensor, nn

from plausible.core.hyperpriors import HalfCauchy, HalfNormal, Hyperprior
from plausible.core.likelihoods import (
    Bernoulli,
    Categorical,
    CensoredNormal,
    HeteroscedasticNormal,
    Normal,
    Poisson,
    StudentT,
)
from plausible.core.model import BayesianModel
from plausible.curvature.outputs import (
    bound_likelihood,
    empirical_unknown_curvature,
    gradient,
    hessian,
    hessian_product,
    output_hessian,
    root,
    roots,
    sampled_root,
    unknown_curvature,
)
from plausible.weights.rng import Keys, run_key, run_keys

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(*shape: int, below: int, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def keys(seed: int = 0, step: int = 0) -> Keys:
    return Keys(run_key(seed), torch.tensor(step))


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
every_convex = pytest.mark.parametrize("case", CONVEX)
every_case = pytest.mark.parametrize("case", EVERY)


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


# --- Hessians and their roots ---


@every_convex
def test_a_convex_loss_has_the_hessian_that_autograd_finds(case):
    torch.testing.assert_close(hessian(*CONVEX[case]), brute_force(*CONVEX[case]), **EXACT)


@every_case
def test_the_columns_of_a_root_give_back_the_hessian(case):
    likelihood, outputs, y = EVERY[case]
    columns, _ = root(likelihood, outputs, y)
    assert columns.shape == (math.prod(outputs.shape[1:]), *outputs.shape)
    torch.testing.assert_close(outer(columns), hessian(likelihood, outputs, y), **EXACT)


@every_case
def test_blocks_of_columns_are_the_root_cut_up(case):
    whole_root, _ = root(*EVERY[case])
    blocks, _ = roots(*EVERY[case], columns=3)
    blocks = list(blocks)
    assert all(len(block) == 3 for block in blocks[:-1]) and 1 <= len(blocks[-1]) <= 3
    torch.testing.assert_close(torch.cat(blocks), whole_root, **EXACT)


@every_case
def test_a_product_is_the_matrix_times_the_vector(case):
    likelihood, outputs, y = EVERY[case]
    v = normal(2, *outputs.shape, seed=7)  # with an axis in front
    dense = hessian(likelihood, outputs, y)
    expected = torch.einsum("nij,mnj->mni", dense, v.reshape(2, len(outputs), -1)).reshape(v.shape)
    torch.testing.assert_close(hessian_product(likelihood, outputs, y, v), expected, **EXACT)
    torch.testing.assert_close(hessian_product(likelihood, outputs, y, v[0]), expected[0], **EXACT)


@every_case
def test_a_gradient_is_the_one_that_autograd_finds(case):
    likelihood, outputs, y = EVERY[case]
    leaf = outputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(likelihood.log_prob(leaf, y).sum(), leaf)
    with torch.no_grad():  # as prediction and post-hoc methods run
        torch.testing.assert_close(gradient(likelihood, outputs, y), expected, **EXACT)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    spread=st.sampled_from([0.1, 1.0, 10.0]),
    ignored=st.booleans(),
)
def test_any_logits_have_the_softmax_hessian_and_its_root(seed, shape, spread, ignored):
    outputs = spread * normal(*shape, seed=seed)
    y = whole(shape[0], *shape[2:], below=shape[1], seed=seed)
    likelihood = Categorical(ignore_index=0 if ignored else None)
    expected = brute_force(likelihood, outputs, y)
    torch.testing.assert_close(hessian(likelihood, outputs, y), expected, **EXACT)
    torch.testing.assert_close(outer(root(likelihood, outputs, y)[0]), expected, **EXACT)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    scale=st.floats(0.1, 10.0),
    case=st.sampled_from(["normal", "bernoulli", "poisson", "censored"]),
)
def test_any_outputs_that_do_not_meet_have_a_diagonal_hessian_and_its_root(seed, shape, scale, case):
    outputs, y = normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    likelihood, y = {
        "normal": (Normal(scale), y),
        "bernoulli": (Bernoulli(), y.sigmoid()),
        "poisson": (Poisson(), y.exp().round()),
        "censored": (CensoredNormal(scale, lower=-0.5, upper=1.0), y),
    }[case]
    expected = brute_force(likelihood, outputs, y)
    tolerance = {"rtol": 1e-12, "atol": 1e-12 * expected.abs().max().item()}
    torch.testing.assert_close(hessian(likelihood, outputs, y), expected, **tolerance)
    torch.testing.assert_close(outer(root(likelihood, outputs, y)[0]), expected, **tolerance)


def test_no_column_connects_two_pixels():
    likelihood, outputs, y = CONVEX["ignored pixels"]
    columns, _ = root(likelihood, outputs, y)
    touched = (columns != 0).any(dim=2).flatten(2).sum(-1)  # pixels that a column excites
    assert touched.max() == 1
    ignored = (y == 2).unsqueeze(1).expand_as(outputs)
    assert ignored.any() and (columns[:, ignored] == 0).all()


def test_blocks_are_made_one_at_a_time():
    outputs = torch.zeros(1, 3, 64, 64)  # all columns together would be 12,288² numbers
    blocks, _ = roots(Categorical(), outputs, torch.zeros(1, 64, 64, dtype=torch.long), columns=2)
    assert next(blocks).shape == (2, *outputs.shape)


def test_fewer_than_one_column_at_a_time_is_refused():
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        list(roots(*CONVEX["normals"], columns=0)[0])


@pytest.mark.parametrize("case", [case for case, (likelihood, *_) in EVERY.items() if case != "a user's that meet"])
def test_float32_outputs_give_float32_curvature(case):
    likelihood, outputs, y = EVERY[case]
    single, y = outputs.float(), y.float() if y.is_floating_point() else y
    columns, clipped = root(likelihood, single, y)
    assert columns.dtype == gradient(likelihood, single, y).dtype == clipped.dtype == torch.float32
    expected = hessian(likelihood, outputs, y.double() if y.is_floating_point() else y).float()
    atol = 1e-6 * expected.abs().max().item()  # an eigendecomposition has the digits of its largest entries
    torch.testing.assert_close(outer(columns), expected, rtol=1e-5, atol=atol)


def test_a_certain_prediction_keeps_its_small_curvature_in_float32():
    small = math.exp(-20.0)  # 1 - p rounds to zero
    bit = hessian(Bernoulli(), torch.tensor([20.0, -20.0]), torch.ones(2))
    torch.testing.assert_close(bit.flatten(), torch.full((2,), small), rtol=1e-5, atol=0)
    columns, _ = root(Categorical(), torch.tensor([[20.0, 0.0]]), torch.zeros(1, dtype=torch.long))
    expected = small * torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    torch.testing.assert_close(outer(columns), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("z", [10.0, 100.0, 1000.0])
def test_a_prediction_far_past_a_limit_keeps_its_curvature_in_float32(z):
    # -∂² log Φ(-z) = 1 - 1/z² + 6/z⁴ - ..., with a next term of 50/z⁶
    found = hessian(CensoredNormal(1.0, lower=0.0), torch.tensor([z]), torch.zeros(1)).item()
    assert found == pytest.approx(1 - z**-2 + 6 * z**-4, abs=60 * z**-6 + 1e-6)


# --- what is not positive semidefinite ---


@every_convex
def test_rounding_is_not_reported_as_clipping(case):
    assert root(*CONVEX[case])[1] == 0
    likelihood, outputs, y = CONVEX[case]
    if case != "a user's that meet":
        assert root(likelihood, outputs.float(), y)[1] == 0


def test_an_indefinite_hessian_is_clipped_and_says_how_far():
    z = torch.tensor([0.0, 2.0], dtype=torch.float64)  # curvatures 2 and -6/25
    columns, clipped = root(Cauchy(), torch.zeros_like(z), z)
    torch.testing.assert_close(outer(columns).flatten(), torch.tensor([2.0, 0.0], dtype=torch.float64), **EXACT)
    assert clipped.shape == () and clipped.item() == pytest.approx(0.12, rel=1e-12)
    assert roots(Cauchy(), torch.zeros_like(z), z)[1] == clipped


def test_curvature_that_is_nowhere_positive_is_infinitely_clipped():
    columns, clipped = root(Cauchy(), torch.zeros(2), torch.tensor([2.0, 3.0]))
    assert clipped == math.inf and (columns == 0).all()


def test_no_curvature_at_all_is_not_clipped():
    class Linear(Cauchy):
        def log_prob(self, outputs, y):
            return (outputs * y).sum(1)

    columns, clipped = root(Linear(), normal(3, 2), normal(3, 2))
    assert clipped == 0 and (columns == 0).all()


def test_of_an_indefinite_hessian_the_nearest_positive_one_is_kept():
    values, vectors = np.linalg.eigh(brute_force(*OBSERVED["censored of learnt scale"]).numpy())
    assert values.min() < 0
    nearest = np.einsum("nij,nj,nkj->nik", vectors, values.clip(0), vectors)
    found = output_hessian(*OBSERVED["censored of learnt scale"])
    np.testing.assert_allclose(found.dense().numpy(), nearest, rtol=0, atol=1e-12 * values.max())
    assert found.clipped.item() == pytest.approx(-values.min() / values.max(), rel=1e-10)


def test_a_subclass_with_another_density_gets_its_own_hessian():
    class Sharper(Normal):
        def log_prob(self, outputs, y):
            return 3 * super().log_prob(outputs, y)

    expected = 3 * hessian(Normal(0.5), normal(4, 2), normal(4, 2, seed=3))
    torch.testing.assert_close(hessian(Sharper(0.5), normal(4, 2), normal(4, 2, seed=3)), expected, **EXACT)


# --- Fisher information ---


def expected_outer_score(likelihood: Any, f: list[float], density: Any) -> np.ndarray:
    """∫ score scoreᵀ p(y) dy for one target, by quadrature."""
    outputs = torch.tensor([f], dtype=torch.float64)

    def integrand(y):
        score = gradient(likelihood, outputs, torch.tensor([[y]], dtype=torch.float64)).flatten().numpy()
        return np.outer(score, score) * density.pdf(y)

    return integrate.quad_vec(integrand, -np.inf, np.inf, epsabs=1e-10, epsrel=1e-9)[0]


@pytest.mark.parametrize(("df", "scale"), [(1.0, 1.0), (3.0, 0.5), (8.0, 2.0)])
def test_student_t_has_its_fisher_information(df, scale):
    expected = expected_outer_score(StudentT(df, scale), [0.3], stats.t(df, 0.3, scale))
    found = hessian(StudentT(df, scale), torch.tensor([[0.3]], dtype=torch.float64), torch.zeros(1, 1))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize("raw", [-2.0, 0.5, 3.0])
def test_a_normal_with_a_predicted_scale_has_its_fisher_information(raw):
    density = stats.norm(0.3, np.logaddexp(0, raw))
    expected = expected_outer_score(HeteroscedasticNormal(), [0.3, raw], density)
    outputs = torch.tensor([[0.3, raw]], dtype=torch.float64)
    found = hessian(HeteroscedasticNormal(), outputs, torch.zeros(1, 1))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-7, atol=1e-7)


def test_a_predicted_scale_at_its_floor_has_no_curvature():
    outputs = torch.tensor([[0.0, -40.0]], dtype=torch.float64)
    found = hessian(HeteroscedasticNormal(), outputs, torch.zeros(1, 1))[0]
    torch.testing.assert_close(found, torch.diag(torch.tensor([1e12, 0.0], dtype=torch.float64)), **EXACT)


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


@pytest.mark.parametrize("case", SAMPLED)
def test_the_sampled_fisher_is_unbiased(case):
    """20,000 draws: the mean of their outer products lies within four standard errors of the information."""
    likelihood, outputs, y = SAMPLED[case]
    copies = 5_000
    columns = sampled_root(
        likelihood,
        outputs.expand(copies, *outputs.shape[1:]),
        keys(3),
        num_samples=4,
        y=y.expand(copies, *y.shape[1:]),
    )
    assert columns.shape == (4, copies, *outputs.shape[1:])
    estimates = outer(columns)  # each the sum over four draws, of which each has weight 1/4
    error = estimates.std(dim=0) / math.sqrt(copies)
    distance = (estimates.mean(dim=0) - hessian(likelihood, outputs, y)[0]).abs()
    assert (distance <= FOUR * error + 1e-12).all()
    assert (error.diagonal() > 0).sum() >= 2  # or there was nothing to compare


def test_the_sampled_fisher_of_a_censored_target_is_that_of_the_censored_experiment():
    """E[score²] = ∫ between the limits + (the score of a censored value)² × its probability."""
    likelihood, mean, scale = CensoredNormal(0.8, lower=-0.5, upper=0.6), 0.2, 0.8
    z_low, z_high = (-0.5 - mean) / scale, (0.6 - mean) / scale
    inside = integrate.quad(lambda z: z * z * stats.norm.pdf(z), z_low, z_high)[0]
    tails = stats.norm.pdf(z_low) ** 2 / stats.norm.cdf(z_low) + stats.norm.pdf(z_high) ** 2 / stats.norm.sf(z_high)
    squares = sampled_root(likelihood, torch.full((20_000,), mean, dtype=torch.float64), keys(5))[0] ** 2
    error = squares.std().item() / math.sqrt(len(squares))
    assert abs(squares.mean().item() - (inside + tails) / scale**2) <= FOUR * error


@pytest.mark.parametrize("case", SAMPLED)
def test_a_sampled_root_depends_on_its_key_alone(case):
    likelihood, outputs, y = SAMPLED[case]
    before = torch.get_rng_state()
    first, again, other = (sampled_root(likelihood, outputs, keys(seed), 8, y=y) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_sampled_root_with_ignored_labels_asks_where_they_are():
    with pytest.raises(ValueError, match="with ignore_index=1 give y"):
        sampled_root(Categorical(ignore_index=1), normal(2, 3), keys())


def test_fewer_than_one_sample_is_refused():
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        sampled_root(Normal(), normal(2, 3), keys(), num_samples=0)


# --- under vmap ---

LOOKS_AT_VALUES = {"a user's"}


@pytest.mark.parametrize("case", [case for case in EVERY if case not in LOOKS_AT_VALUES])
def test_all_of_it_runs_under_vmap(case):
    likelihood, outputs, y = EVERY[case]
    stacked = torch.stack([outputs, 0.5 * outputs, outputs + 1])
    v = normal(*outputs.shape, seed=9)

    def everything(f):
        found = output_hessian(likelihood, f, y)
        # Eigenvectors have no sign of their own, so a root is compared by its square.
        return outer(torch.cat(list(found.roots(2)))), found.dense(), found.product(v), found.clipped

    together = torch.func.vmap(everything)(stacked)
    torch.testing.assert_close(together, tuple(map(torch.stack, zip(*map(everything, stacked), strict=True))), **EXACT)
    slopes = torch.func.vmap(lambda f: gradient(likelihood, f, y))(stacked)
    torch.testing.assert_close(slopes, torch.stack([gradient(likelihood, f, y) for f in stacked]), **EXACT)


@pytest.mark.parametrize("case", ["classes", "pixels", "bits", "normals", "heteroscedastic"])
def test_keyed_samples_are_the_same_under_vmap(case):
    likelihood, outputs, y = SAMPLED[case]
    rows = run_keys(4, 3)

    def columns(key):
        return sampled_root(likelihood, outputs, Keys(key, torch.tensor(2)), 3, y=y)

    together = torch.func.vmap(columns)(rows)
    torch.testing.assert_close(together, torch.stack([columns(key) for key in rows]), **EXACT)


# --- the likelihood's own unknowns ---


def model_of(likelihood: Any) -> BayesianModel:
    return BayesianModel(nn.Linear(1, 2).double(), likelihood)


def with_unknowns(model: BayesianModel, **values: Any) -> dict[str, Tensor]:
    """The model's start, with other natural values for the likelihood's unknowns."""
    params = dict(model.start)
    for name, value in values.items():
        key = f"likelihood.{name}"
        params[key] = model._transforms[key].inv(torch.as_tensor(value, dtype=torch.float64))
    return params


OUTPUTS, TARGETS = normal(6, 2), normal(6, 2, seed=3)
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0, 1.5], dtype=torch.float64)


def test_a_bound_likelihood_has_the_natural_values():
    model = model_of(Normal("learn"))
    assert bound_likelihood(model, with_unknowns(model, scale=0.3)).scale.item() == pytest.approx(0.3)
    assert bound_likelihood(model_of(Poisson()), {}) == Poisson()


def test_an_unknown_noise_scale_has_information_two_per_target():
    model = model_of(Normal("learn"))
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=0.3), OUTPUTS, TARGETS, WEIGHTS)
    assert clipped == 0 and found["likelihood.scale"].shape == ()
    assert found["likelihood.scale"].item() == pytest.approx(2 * 2 * WEIGHTS.sum().item(), rel=1e-12)
    unweighted, _ = unknown_curvature(model, with_unknowns(model, scale=0.3), OUTPUTS, TARGETS)
    assert unweighted["likelihood.scale"].item() == pytest.approx(2 * OUTPUTS.numel(), rel=1e-12)


@dataclass(frozen=True)
class Between(HalfNormal):
    """A scale with a transform that is not the exponential."""

    constraint = torch.distributions.constraints.interval(0.1, 2.0)


@pytest.mark.parametrize(
    ("likelihood", "values"),
    [
        (Normal("learn"), {"scale": 0.6}),
        (Normal(Between()), {"scale": 0.6}),
        (StudentT(4.0, "learn"), {"scale": 0.6}),
        (StudentT(HalfCauchy(), "learn"), {"df": 2.5, "scale": 0.6}),
        (StudentT(HalfCauchy(), 0.5), {"df": 40.0}),
    ],
)
def test_expected_information_is_the_mean_squared_score(likelihood, values):
    """∫ (∂ log p / ∂u)² p(y) dy by quadrature, the score by automatic differentiation."""
    model = model_of(likelihood)
    params = with_unknowns(model, **values)
    bound = bound_likelihood(model, params)
    density = stats.norm(0, 0.6) if isinstance(bound, Normal) else stats.t(float(bound.df), 0, float(bound.scale))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found, _ = unknown_curvature(model, params, zero, zero)
    assert found.keys() == {f"likelihood.{name}" for name in values}
    for name, information in found.items():

        def integrand(y, name=name):
            target = torch.tensor([[y]], dtype=torch.float64)
            return empirical_unknown_curvature(model, params, zero, target)[name].item() * density.pdf(y)

        expected = 2 * integrate.quad(integrand, 0, np.inf, epsabs=1e-10, epsrel=1e-8, limit=200)[0]
        assert information.item() == pytest.approx(expected, rel=1e-6)


def test_outputs_and_noise_scale_do_not_meet_in_expectation():
    """What `unknown_curvature` leaves out: E[score of f × score of log σ], over targets placed symmetrically."""
    y = torch.tensor([-1.3, 1.3, -0.2, 0.2], dtype=torch.float64)
    for make in (Normal, lambda s: StudentT(3.0, s)):
        scores = [
            torch.func.grad(lambda s, f, t, make=make: make(s).log_prob(f, t).sum(), argnums=(0, 1))(
                torch.tensor(0.7, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), t[None]
            )
            for t in y
        ]
        assert sum(s * f.item() for s, f in scores).item() == pytest.approx(0, abs=1e-12)


def test_a_scale_for_every_output_gets_information_of_its_own():
    model = model_of(Normal("learn"))
    params = with_unknowns(model, scale=[0.3, 1.2])
    found, _ = unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)
    torch.testing.assert_close(found["likelihood.scale"], 2 * WEIGHTS.sum().expand(2), **EXACT)
    squares = empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)["likelihood.scale"]
    z = (TARGETS - OUTPUTS) / torch.tensor([0.3, 1.2], dtype=torch.float64)
    torch.testing.assert_close(squares, (WEIGHTS[:, None] * (z**2 - 1) ** 2).sum(0), **EXACT)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_without_a_formula_the_information_is_the_observed_one(shape):
    model = model_of(CensoredNormal("learn", lower=-0.5, upper=0.5))
    params = with_unknowns(model, scale=torch.linspace(0.4, 0.9, math.prod(shape)).reshape(shape))

    def loss(u):
        bound = CensoredNormal(u.exp(), lower=-0.5, upper=0.5)
        return -(WEIGHTS * bound.log_prob(OUTPUTS, TARGETS)).sum()

    expected = torch.autograd.functional.hessian(loss, params["likelihood.scale"])
    found, clipped = unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)
    assert clipped == 0 and found["likelihood.scale"].shape == shape
    torch.testing.assert_close(found["likelihood.scale"], expected.diagonal() if shape else expected, **EXACT)


class Bumpy:
    """−log p = u⁴ − u² / 2 in u = log scale, so the observed information at u = 0 is negative: −1 for each example."""

    def __init__(self, scale: Hyperprior):
        self.scale = scale

    def distribution(self, outputs):
        raise NotImplementedError

    def log_prob(self, outputs, y):
        u = torch.log(self.scale)
        return (u**2 / 2 - u**4) * torch.ones_like(outputs[:, 0])


def test_negative_observed_information_is_clipped_and_reported():
    model = model_of(Bumpy(HalfCauchy()))
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=1.0), OUTPUTS, TARGETS)
    assert found["likelihood.scale"] == 0 and clipped == math.inf
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=math.e), OUTPUTS, TARGETS)
    assert found["likelihood.scale"].item() == pytest.approx(6 * 11, rel=1e-12) and clipped == 0


def test_empirical_information_squares_every_examples_own_score():
    model = model_of(CensoredNormal("learn", lower=-0.5, upper=0.5))
    params = with_unknowns(model, scale=0.6)
    expected = 0.0
    for i, weight in enumerate(WEIGHTS):
        u = params["likelihood.scale"].clone().requires_grad_()
        value = CensoredNormal(u.exp(), lower=-0.5, upper=0.5).log_prob(OUTPUTS[i : i + 1], TARGETS[i : i + 1])
        (score,) = torch.autograd.grad(value.sum(), u)
        expected += (weight * score**2).item()
    found = empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)["likelihood.scale"]
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_a_likelihood_without_unknowns_has_no_information_about_them():
    model = model_of(Normal(0.5))
    found, clipped = unknown_curvature(model, model.start, OUTPUTS, TARGETS)
    assert found == {} and clipped == 0
    assert empirical_unknown_curvature(model, model.start, OUTPUTS, TARGETS) == {}


@pytest.mark.parametrize(
    "likelihood", [Normal("learn"), StudentT(HalfCauchy(), "learn"), CensoredNormal("learn", lower=-0.5)]
)
def test_information_about_unknowns_runs_under_vmap(likelihood):
    model = model_of(likelihood)
    several = [{k: v + 0.1 * i for k, v in model.start.items()} for i in range(3)]
    stacked = {k: torch.stack([params[k] for params in several]) for k in model.start}
    for function in (
        lambda params: unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)[0],
        lambda params: empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS),
    ):
        together = torch.func.vmap(function)(stacked)
        alone = [function(params) for params in several]
        expected = {k: torch.stack([found[k] for found in alone]) for k in alone[0]}
        torch.testing.assert_close(together, expected, **EXACT)
