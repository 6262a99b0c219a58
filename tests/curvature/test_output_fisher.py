"""Fisher information of the outputs, exact and sampled, against quadrature and simulation."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from tests.curvature.output_cases import EXACT, SAMPLED, normal, outer
from tests.oracles import FOUR

from plausible.core.likelihoods import Categorical, CensoredNormal, HeteroscedasticNormal, Normal, StudentT
from plausible.curvature.outputs import gradient, hessian, sampled_root
from plausible.weights.rng import Keys, run_key, run_keys


def keys(seed: int = 0, step: int = 0) -> Keys:
    return Keys(run_key(seed), torch.tensor(step))


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


@pytest.mark.parametrize("case", ["classes", "pixels", "bits", "normals", "heteroscedastic"])
def test_keyed_samples_are_the_same_under_vmap(case):
    likelihood, outputs, y = SAMPLED[case]
    rows = run_keys(4, 3)

    def columns(key):
        return sampled_root(likelihood, outputs, Keys(key, torch.tensor(2)), 3, y=y)

    together = torch.func.vmap(columns)(rows)
    torch.testing.assert_close(together, torch.stack([columns(key) for key in rows]), **EXACT)
