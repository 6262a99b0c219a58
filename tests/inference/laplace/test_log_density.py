"""Laplace on a bare log density: minus the Hessian at the top, and the integral of the density."""

import math

import pytest
import torch
from scipy.integrate import quad
from tests.oracles import anisotropic_covariance, vector_of
from torch.distributions import Gamma, MultivariateNormal, constraints

import plausible as pl

QUICK = {"steps": 1, "progress": False}


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_a_normal_density_is_its_own_approximation(shift):
    covariance = anisotropic_covariance(5)
    truth = MultivariateNormal(torch.full((5,), shift, dtype=torch.float64), covariance)
    start = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(3, 1, dtype=torch.float64)}
    target = pl.LogDensity(lambda p: truth.log_prob(torch.cat([p["a"], p["b"][:, 0]])) + 3.0, start)
    posterior = pl.fit(target, None, pl.Laplace(structure="full"), **QUICK)
    torch.testing.assert_close(vector_of(posterior.mean), truth.loc, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-8, atol=1e-10)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(3.0, abs=1e-9)
    assert posterior.diagnostics().ok
    diagonal = pl.fit(target, None, pl.Laplace(structure="diagonal"), **QUICK)
    expected = covariance.inverse().diagonal().rsqrt()
    torch.testing.assert_close(vector_of(diagonal.scale), expected, rtol=1e-8, atol=0)
    some = pl.fit(target, None, pl.Laplace(structure="full", subset="a"), **QUICK)
    torch.testing.assert_close(some.covariance, covariance.inverse()[:2, :2].inverse(), rtol=1e-8, atol=1e-10)


def test_a_positive_unknown_is_expanded_on_its_logarithm():
    """log x of a Gamma(α, β) has its mode at log(α/β) and curvature α there; the integral is Stirling's Γ(α)."""
    gamma = Gamma(torch.tensor(6.0).double(), torch.tensor(2.0).double())
    target = pl.LogDensity(
        lambda p: gamma.log_prob(p["x"]), {"x": torch.tensor(1.0).double()}, {"x": constraints.positive}
    )
    posterior = pl.fit(target, None, pl.Laplace(structure="full"), **QUICK)
    assert float(posterior.mean["x"]) == pytest.approx(math.log(3.0), abs=1e-9)
    assert posterior.covariance.item() == pytest.approx(1 / 6, rel=1e-9)
    stirling = 0.5 * math.log(2 * math.pi / 6) + 6 * math.log(6) - 6 - math.lgamma(6)
    found = float(posterior.evidence().log_marginal_likelihood)
    assert found == pytest.approx(stirling, abs=1e-9)
    assert quad(lambda u: math.exp(float(gamma.log_prob(torch.tensor(math.exp(u)).double())) + u), -6, 4)[
        0
    ] == pytest.approx(math.exp(found), rel=0.02)


def test_what_a_density_does_not_have_is_refused_by_name():
    target = pl.LogDensity(lambda p: -0.5 * (p["w"] ** 2).sum(), {"w": torch.zeros(2)})
    for wrong in ({}, {"structure": "low-rank"}, {"structure": "full", "prior_precision": 1.0}):
        with pytest.raises(pl.NotSupported, match='structure="full"'):
            pl.fit(target, None, pl.Laplace(**wrong), **QUICK)
    with pytest.raises(pl.NotSupported, match="last layer"):
        pl.fit(target, None, pl.Laplace(structure="full", subset="last-layer"), **QUICK)
    ridge = pl.LogDensity(lambda p: -0.5 * (p["w"][0] - p["w"][1]) ** 2, {"w": torch.zeros(2).double()})
    with pytest.raises(ValueError, match="infinite.*HMC"):
        pl.fit(ridge, None, pl.Laplace(structure="full"), **QUICK)
