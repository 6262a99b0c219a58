"""Distributions that torch lacks, against scipy.stats."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from plausible.core.likelihoods.distributions import Poisson, StudentT, TruncatedNormal

GRID = np.linspace(-3, 9, 25)
# (loc, scale, low): the middle, deep in either tail.
TRUNCATIONS = [(0.5, 1.2, 0.0), (9.0, 0.5, -4.0), (-3.0, 0.5, 0.0), (-20.0, 0.5, 0.0), (0.0, 1.0, 0.3)]


def double(*values):
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


def scipy_truncated(loc, scale, low):
    return stats.truncnorm((low - loc) / scale, np.inf, loc=loc, scale=scale)


@pytest.mark.parametrize("df", [0.8, 2.0, 4.0, 50.0])
def test_student_t_has_a_cdf(df):
    distribution = StudentT(*double(df, 0.7, 1.9), validate_args=False)
    ours = distribution.cdf(torch.tensor(GRID))
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), stats.t(df, 0.7, 1.9).cdf(GRID), rtol=1e-10)
    assert distribution.expand((3,)).cdf(torch.zeros(3).double()).shape == (3,)


def test_student_t_keeps_float32_and_broadcasts_its_degrees_of_freedom():
    distribution = StudentT(torch.tensor([3.0, 8.0]), torch.zeros(5, 2), torch.tensor(2.0), validate_args=False)
    ours = distribution.cdf(torch.ones(4, 5, 2))
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours[0, 0].numpy(), stats.t([3.0, 8.0], scale=2.0).cdf(1.0), rtol=1e-6)


def test_student_t_has_no_variance_up_to_two_degrees_of_freedom():
    assert StudentT(*double(2.0, 0.0, 1.0), validate_args=False).variance.item() == math.inf
    assert math.isnan(StudentT(*double(1.0, 0.0, 1.0), validate_args=False).variance.item())
    assert StudentT(*double(4.0, 0.0, 1.5), validate_args=False).variance.item() == pytest.approx(4.5)


@pytest.mark.parametrize("rate", [0.01, 1.0, 6.5, 300.0])
def test_poisson_has_a_cdf(rate):
    grid = np.concatenate([GRID, [250.0, 300.5, 350.0]])
    distribution = Poisson(*double(rate), validate_args=False)
    ours = distribution.cdf(torch.tensor(grid)).numpy()
    # torch's incomplete gamma function switches to an expansion good to nine digits at large rates.
    np.testing.assert_allclose(ours, stats.poisson(rate).cdf(grid), rtol=1e-10 if rate < 20 else 5e-9)


@pytest.mark.parametrize(("loc", "scale", "low"), TRUNCATIONS)
def test_a_truncated_normal_agrees_with_scipy(loc, scale, low):
    ours = TruncatedNormal(*double(loc, scale, low), validate_args=False)
    reference = scipy_truncated(loc, scale, low)
    x = np.concatenate([low + np.array([-1.0, 0.0, 1e-3, 0.01, 0.1, 1.0, 3.0]), [max(loc, low) + scale]])
    np.testing.assert_allclose(ours.log_prob(torch.tensor(x)).numpy(), reference.logpdf(x), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.cdf(torch.tensor(x)).numpy(), reference.cdf(x), rtol=1e-9, atol=1e-12)
    assert ours.mean.item() == pytest.approx(reference.mean(), rel=1e-9)
    assert ours.variance.item() == pytest.approx(reference.var(), rel=1e-6)  # scipy's own cancels in the tail


@pytest.mark.parametrize(("loc", "scale", "low"), TRUNCATIONS)
def test_the_quantiles_of_a_truncated_normal_invert_its_cdf(loc, scale, low):
    ours = TruncatedNormal(*double(loc, scale, low), validate_args=False)
    q = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
    torch.testing.assert_close(ours.cdf(ours.icdf(q)), q, rtol=1e-8, atol=1e-11)
    assert ours.icdf(torch.tensor(0.0).double()).item() == pytest.approx(low, abs=1e-9)


@pytest.mark.parametrize(("loc", "scale", "low"), TRUNCATIONS)
def test_draws_of_a_truncated_normal_follow_it(loc, scale, low):
    torch.manual_seed(11)
    draws = TruncatedNormal(*double(loc, scale, low), validate_args=False).sample((4000,)).numpy()
    assert (draws >= low).all()
    assert stats.kstest(draws, scipy_truncated(loc, scale, low).cdf).pvalue > 1e-3


@pytest.mark.parametrize("cut", [40.0, 99.0, 101.0, 1000.0])
def test_far_in_the_tail_the_excess_is_exponential(cut):
    # For a → ∞ the excess over the cut has mean 1/a - 2/a³ and variance 1/a² - 6/a⁴, here with the next terms.
    ours = TruncatedNormal(*double(-cut, 1.0, 0.0), validate_args=False)
    assert ours.mean.item() == pytest.approx(1 / cut - 2 / cut**3 + 10 / cut**5, rel=1e-7)
    assert ours.variance.item() == pytest.approx(1 / cut**2 - 6 / cut**4 + 50 / cut**6, rel=2e-7)
    torch.manual_seed(0)
    draws = ours.sample((4000,)).numpy()
    # The excess is exponential up to O(1/a²), well below what 4,000 draws can see.
    assert stats.kstest(draws * cut, stats.expon.cdf).pvalue > 1e-3


def test_a_truncated_normal_keeps_float32_and_expands():
    ours = TruncatedNormal(torch.tensor([-40.0, 3.0]), torch.tensor(1.0), 0.0, validate_args=False)
    for result in (
        ours.mean,
        ours.variance,
        ours.sample((5,)),
        ours.cdf(torch.ones(2)),
        ours.icdf(torch.full((2,), 0.5)),
    ):
        assert result.dtype == torch.float32
        assert torch.isfinite(result).all()
    assert ours.variance[0].item() == pytest.approx(scipy_truncated(-40.0, 1.0, 0.0).var(), rel=1e-4)
    expanded = ours.expand((3, 2))
    assert expanded.batch_shape == expanded.mean.shape == expanded.sample().shape == (3, 2)
