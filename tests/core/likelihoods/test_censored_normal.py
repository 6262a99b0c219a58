"""The censored and truncated normal: total probability one, and gradients far in the tails."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from plausible.core.likelihoods import CensoredNormal

LIMITS = list(itertools.product([None, 4.0], [None, 9.0], [None, 2.5]))
all_limits = pytest.mark.parametrize(("lower", "upper", "low"), LIMITS)


def density(likelihood, outputs, y):
    outputs, y = (torch.tensor([value], dtype=torch.float64) for value in (outputs, y))
    if likelihood.scale is None:
        outputs, y = outputs.reshape(1, -1), y.reshape(1, 1)
    return likelihood.log_prob(outputs, y).exp().item()


@all_limits
@pytest.mark.parametrize("mean", [-4.0, 3.0, 6.0, 12.0])
def test_the_density_and_the_censored_masses_sum_to_one(lower, upper, low, mean):
    likelihood = CensoredNormal(1.3, lower, upper, low)
    left = max(value for value in (lower, low, min(mean, 2.5) - 14 * 1.3) if value is not None)
    right = upper if upper is not None else max(mean, 9.0) + 14 * 1.3
    inside, _ = integrate.quad(
        lambda y: density(likelihood, mean, y),
        left + 1e-12,
        right - 1e-12,
        points=[min(max(mean, left), right)],
        limit=200,
    )
    below = density(likelihood, mean, lower) if lower is not None else 0.0
    above = density(likelihood, mean, upper) if upper is not None else 0.0
    assert inside + below + above == pytest.approx(1, abs=1e-7)


@all_limits
def test_each_part_agrees_with_scipy(lower, upper, low):
    mean, scale = 5.1, 1.7
    cut = -np.inf if low is None else (low - mean) / scale
    quantity = stats.truncnorm(cut, np.inf, loc=mean, scale=scale)
    likelihood = CensoredNormal(scale, lower, upper, low)
    for y in (2.6, 4.0, 4.1, 7.0, 9.0, 11.0):
        if lower is not None and y <= lower:
            expected = quantity.cdf(lower)
        elif upper is not None and y >= upper:
            expected = quantity.sf(upper)
        else:
            expected = quantity.pdf(y)
        assert density(likelihood, mean, y) == pytest.approx(expected, rel=1e-10)


def test_nothing_lies_below_a_truncation():
    assert density(CensoredNormal(1.0, truncate_below=2.0), 3.0, 1.9) == 0
    assert density(CensoredNormal(1.0, lower=2.5, truncate_below=2.0), 3.0, 1.9) == 0


def test_two_outputs_are_a_mean_and_a_raw_scale():
    ours = density(CensoredNormal(lower=4.0, upper=9.0), [5.0, 0.7], 9.5)
    assert ours == pytest.approx(stats.norm(5.0, np.logaddexp(0, 0.7)).sf(9.0), rel=1e-12)


def test_values_sum_over_the_targets_of_an_example():
    outputs, y = torch.tensor([[5.0, 6.0]]).double(), torch.tensor([[3.0, 6.5]]).double()
    expected = stats.norm(5.0).logcdf(4.0) + stats.norm(6.0).logpdf(6.5)
    assert CensoredNormal(1.0, lower=4.0).log_prob(outputs, y).item() == pytest.approx(expected, rel=1e-12)


@all_limits
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_far_in_the_tails(lower, upper, low, dtype):
    # Means 40 and 1,000 scales on either side of every limit, targets in every part.
    means = torch.tensor([-1000.0, -40.0, 0.0, 6.0, 50.0, 1000.0], dtype=dtype)
    targets = torch.tensor([2.6, 4.0, 6.0, 9.0, 10.0], dtype=dtype)
    grid = torch.cartesian_prod(means, targets)
    mean, y = grid[:, 0].clone().requires_grad_(), grid[:, 1]
    scale = torch.ones((), dtype=dtype, requires_grad=True)
    log_prob = CensoredNormal(scale, lower, upper, low).log_prob(mean, y)
    assert torch.isfinite(log_prob).all()
    for slope in torch.autograd.grad(log_prob.sum(), [mean, scale]):
        assert torch.isfinite(slope).all()


def test_the_slope_forty_scales_out_is_the_hazard():
    for dtype, rel in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        mean = torch.tensor([44.0, -31.0], dtype=dtype, requires_grad=True)
        y = torch.tensor([4.0, 9.0], dtype=dtype)
        (slope,) = torch.autograd.grad(CensoredNormal(1.0, 4.0, 9.0).log_prob(mean, y).sum(), mean)
        hazard = math.exp(stats.norm.logpdf(40.0) - stats.norm.logsf(40.0))
        assert slope.tolist() == pytest.approx([-hazard, hazard], rel=max(rel, 1e-10))


def test_an_unused_branch_does_not_poison_the_gradient():
    # In float32 the square of 1e20 overflows; the censored branch must not see the distant target.
    mean = torch.tensor([5.0], requires_grad=True)
    log_prob = CensoredNormal(1.0, upper=9.0).log_prob(mean, torch.tensor([1e30]))
    (slope,) = torch.autograd.grad(log_prob.sum(), mean)
    assert log_prob.item() == pytest.approx(stats.norm(5.0).logsf(9.0), rel=1e-5)
    assert torch.isfinite(slope).all()


def test_second_derivatives_are_finite_and_negative():
    # The log density of a censored normal is concave in the mean; curvature methods rely on it.
    means = torch.tensor([-35.0, 3.0, 6.0, 45.0], dtype=torch.float64)
    likelihood = CensoredNormal(1.0, 4.0, 9.0)
    for target in (4.0, 6.0, 9.0):
        y = torch.tensor([target], dtype=torch.float64)
        second = torch.func.grad(torch.func.grad(lambda m, y=y: likelihood.log_prob(m[None], y).sum()))
        curvature = torch.vmap(second)(means)
        assert torch.isfinite(curvature).all()
        assert (curvature <= 0).all()


def test_the_distribution_is_that_of_the_quantity_itself():
    outputs = torch.tensor([5.0]).double()
    plain = CensoredNormal(1.5, 4.0, 9.0).distribution(outputs)
    assert (plain.mean.item(), plain.stddev.item()) == (5.0, 1.5)
    truncated = CensoredNormal(1.5, 4.5, 9.0, 4.0).distribution(outputs)
    reference = stats.truncnorm(-1 / 1.5, np.inf, loc=5.0, scale=1.5)
    assert truncated.mean.item() == pytest.approx(reference.mean(), rel=1e-10)
    assert truncated.variance.item() == pytest.approx(reference.var(), rel=1e-9)
