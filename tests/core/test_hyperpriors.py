"""Hyperpriors against scipy.stats."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from plausible.core import hyperpriors
from plausible.core.errors import NotSupported
from plausible.core.hyperpriors import HalfCauchy, HalfNormal, Hyperprior, InverseGamma, LogFlat, LogNormal

REFERENCES = [
    (HalfNormal(scale=0.7), lambda s: stats.halfnorm(scale=0.7).logpdf(s)),
    (HalfCauchy(scale=2.5), lambda s: stats.halfcauchy(scale=2.5).logpdf(s)),
    (LogNormal(loc=-0.4, scale=0.6), lambda s: stats.lognorm(s=0.6, scale=math.exp(-0.4)).logpdf(s)),
    (
        InverseGamma(concentration=3.0, rate=2.0),
        lambda s: stats.invgamma(a=3.0, scale=2.0).logpdf(s**2) + np.log(2 * s),
    ),
    (LogFlat(), lambda s: -np.log(s)),
]
PROPER = [row for row in REFERENCES if not isinstance(row[0], LogFlat)]


def named(row):
    return type(row[0]).__name__ if isinstance(row, tuple) else type(row).__name__


@pytest.mark.parametrize(("hyperprior", "reference"), REFERENCES)
def test_log_prob_is_the_density_of_the_scale(hyperprior, reference):
    s = np.array([0.05, 0.3, 1.0, 4.2, 30.0])
    ours = hyperprior.log_prob(torch.tensor(s))
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), reference(s), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("hyperprior", "reference"), PROPER)
def test_a_proper_hyperprior_integrates_to_one(hyperprior, reference):
    # On log s, where the heavy tails of the half-Cauchy are tame.
    total, _ = integrate.quad(
        lambda t: math.exp(hyperprior.log_prob(torch.tensor(t).double().exp()).item() + t), -40, 40
    )
    assert total == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("hyperprior", "reference"), PROPER)
def test_a_run_starts_at_the_mode_of_the_log_scale(hyperprior, reference):
    best = optimize.minimize_scalar(lambda t: -(reference(np.exp(t)) + t), bounds=(-6, 6), method="bounded")
    assert hyperprior.start == pytest.approx(math.exp(best.x), rel=1e-4)


@pytest.mark.parametrize(("hyperprior", "reference"), REFERENCES)
def test_it_says_whether_the_density_vanishes_at_zero(hyperprior, reference):
    density = hyperprior.log_prob(torch.tensor(1e-9, dtype=torch.float64)).exp()
    assert hyperprior.vanishes_at_zero == bool(density < 1e-12)


@pytest.mark.parametrize(("hyperprior", "reference"), PROPER)
def test_draws_follow_the_density(hyperprior, reference):
    draws = hyperprior.sample((4000,), torch.Generator().manual_seed(3), dtype=torch.float64).numpy()
    cdfs = {
        HalfNormal: stats.halfnorm(scale=0.7).cdf,
        HalfCauchy: stats.halfcauchy(scale=2.5).cdf,
        LogNormal: stats.lognorm(s=0.6, scale=math.exp(-0.4)).cdf,
        InverseGamma: lambda s: stats.invgamma(a=3.0, scale=2.0).cdf(s**2),
    }
    assert stats.kstest(draws, cdfs[type(hyperprior)]).pvalue > 1e-3


def test_draws_have_the_dtype_asked_for_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    draws = HalfCauchy().sample((2, 3), torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    assert draws.shape == (2, 3)
    assert draws.dtype == torch.bfloat16
    assert HalfNormal().sample((), torch.Generator().manual_seed(0)).dtype == torch.get_default_dtype()
    assert torch.equal(before, torch.get_rng_state())


def test_a_flat_density_cannot_be_drawn_from():
    with pytest.raises(NotSupported, match="cannot be sampled; HalfNormal"):
        LogFlat().sample((3,), torch.Generator())


@pytest.mark.parametrize(("hyperprior", "reference"), REFERENCES)
def test_log_prob_runs_in_vmap_and_keeps_the_dtype(hyperprior, reference):
    s = torch.tensor([0.2, 0.9, 3.0], dtype=torch.float32)
    vectorised = torch.vmap(hyperprior.log_prob)(s)
    assert vectorised.dtype == torch.float32
    assert torch.equal(vectorised, torch.stack([hyperprior.log_prob(value) for value in s]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HalfNormal(scale=0.0), "scale must be positive and finite, got 0.0"),
        (lambda: HalfCauchy(scale=math.inf), "scale must be positive and finite, got inf"),
        (lambda: LogNormal(loc=math.nan), "loc must be finite, got nan"),
        (lambda: LogNormal(scale=-2), "scale must be positive and finite, got -2"),
        (lambda: InverseGamma(concentration=-1.0), "concentration must be positive and finite, got -1.0"),
        (lambda: InverseGamma(rate=0), "rate must be positive and finite, got 0"),
    ],
)
def test_impossible_numbers_are_refused_by_value(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


@pytest.mark.parametrize("value", ["1", True, None, torch.tensor(1.0)])
def test_what_is_not_a_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="scale must be a number, got"):
        HalfNormal(scale=value)
    with pytest.raises(TypeError, match="loc must be a number, got"):
        LogNormal(loc=value)


def test_every_hyperprior_is_in_the_registry_under_its_own_name():
    classes = {v.__name__: v for v in vars(hyperpriors).values() if isinstance(v, type) and issubclass(v, Hyperprior)}
    del classes["Hyperprior"]
    assert hyperpriors.registry == classes


def test_natural_values_are_positive():
    to_natural = torch.distributions.biject_to(HalfCauchy().constraint)
    assert (to_natural(torch.tensor([-3.0, 0.0, 3.0])) > 0).all()
