"""Hessians of the loss in the outputs, their roots and products, against automatic differentiation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.curvature.output_cases import CONVEX, EVERY, EXACT, OBSERVED, Cauchy, brute_force, normal, outer, whole

from plausible.core.likelihoods import Bernoulli, Categorical, CensoredNormal, Normal, Poisson
from plausible.curvature.outputs import gradient, hessian, hessian_product, output_hessian, root, roots

every_convex = pytest.mark.parametrize("case", CONVEX)
every_case = pytest.mark.parametrize("case", EVERY)


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
