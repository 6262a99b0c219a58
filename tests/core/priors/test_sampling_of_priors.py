"""Draws from the priors against their distribution functions."""

import math

import pytest
import torch
from scipy import stats

from plausible.core.errors import NotSupported
from plausible.core.priors import Cauchy, Flat, Laplace, Normal, ScaleMixture, StudentT, fan_in

CASES = [
    (Normal(0.7), stats.norm(scale=0.7).cdf),
    (Laplace(0.7), stats.laplace(scale=0.7).cdf),
    (Cauchy(0.7), stats.cauchy(scale=0.7).cdf),
    (StudentT(3.5, 0.7), stats.t(3.5, scale=0.7).cdf),
    (
        ScaleMixture((0.05, 1.5), (0.3, 0.7)),
        lambda w: 0.3 * stats.norm(scale=0.05).cdf(w) + 0.7 * stats.norm(scale=1.5).cdf(w),
    ),
    (fan_in(Laplace(0.7)), stats.laplace(scale=0.7 / math.sqrt(25)).cdf),
    (
        ScaleMixture(torch.tensor([0.05, 1.5]), torch.tensor([0.3, 0.7])),
        lambda w: 0.3 * stats.norm(scale=0.05).cdf(w) + 0.7 * stats.norm(scale=1.5).cdf(w),
    ),
    (StudentT(torch.tensor(3.5), torch.tensor(0.7)), stats.t(3.5, scale=0.7).cdf),
]
every_prior = pytest.mark.parametrize(("prior", "cdf"), CASES, ids=[repr(prior) for prior, _ in CASES])


@every_prior
def test_draws_follow_the_prior(prior, cdf):
    draws = prior.sample(torch.empty(400, 25, dtype=torch.float64), torch.Generator().manual_seed(7))
    assert stats.kstest(draws.flatten().numpy(), cdf).pvalue > 1e-3


@every_prior
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_draws_are_like_the_weight_and_repeat_with_the_seed(prior, cdf, dtype):
    like = torch.empty(4, 25, dtype=dtype)
    before = torch.get_rng_state()
    draw, again, other = (prior.sample(like, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert draw.shape == like.shape
    assert draw.dtype == dtype
    assert torch.isfinite(draw).all()
    assert torch.equal(draw, again)
    assert not torch.equal(draw, other)
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_means_the_same_weights_in_every_precision():
    double, single = (
        Normal(0.7).sample(torch.empty(9, dtype=d), torch.Generator().manual_seed(1))
        for d in (torch.float64, torch.float32)
    )
    torch.testing.assert_close(double.float(), single)


def test_a_flat_prior_cannot_be_drawn_from():
    with pytest.raises(NotSupported, match="a flat prior cannot be sampled; Normal, Laplace"):
        Flat().sample(torch.zeros(2), torch.Generator())
