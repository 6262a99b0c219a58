"""A log density of a dictionary of tensors, with supports and their Jacobians."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import constraints

import plausible as pl


def gamma_density():
    def log_prob(p):
        return 2.0 * p["rate"].log() - 3.0 * p["rate"] + math.log(27.0 / 2.0)

    return pl.LogDensity(log_prob, {"rate": torch.tensor(0.8).double()}, support={"rate": constraints.positive})


def test_the_unconstrained_density_integrates_to_one_and_matches_the_change_of_variables():
    density = gamma_density()
    value = lambda u: density.log_joint({"rate": torch.tensor(u, dtype=torch.float64)}).item()  # noqa: E731
    total, _ = integrate.quad(lambda u: math.exp(value(u)), -20, 5)
    assert total == pytest.approx(1.0, abs=1e-7)
    natural = stats.gamma(3.0, scale=1 / 3)
    assert value(0.3) == pytest.approx(natural.logpdf(math.exp(0.3)) + 0.3, rel=1e-12)


def test_an_interval_has_its_jacobian_too():
    support = {"p": constraints.unit_interval}
    density = pl.LogDensity(
        lambda v: torch.zeros(()).double() + 0 * v["p"], {"p": torch.tensor(0.25).double()}, support
    )
    total, _ = integrate.quad(
        lambda u: density.log_joint({"p": torch.tensor(u, dtype=torch.float64)}).exp().item(), -40, 40
    )
    assert total == pytest.approx(1.0, abs=1e-7)
    assert density.start["p"].item() == pytest.approx(math.log(0.25 / 0.75))
    assert density.constrain(density.start)["p"].item() == pytest.approx(0.25)


def test_the_slope_is_autograds_also_inside_vmap():
    density = gamma_density()
    points = torch.tensor([-1.0, 0.2, 0.9], dtype=torch.float64)
    value, slopes = torch.vmap(lambda u: density.slope({"rate": u}))(points)
    leaf = points.clone().requires_grad_()
    expected = torch.stack([density.log_joint({"rate": u}) for u in leaf])
    (truth,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes["rate"], truth, rtol=1e-10, atol=1e-10)
    _, lone = density.slope({"rate": points[1]})
    torch.testing.assert_close(lone["rate"], truth[1], rtol=1e-10, atol=1e-10)


def test_what_it_cannot_do_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="function"):
        pl.LogDensity(3.0, {"a": torch.zeros(2)})
    with pytest.raises(TypeError, match="dictionary"):
        pl.LogDensity(lambda p: 0.0, torch.zeros(2))
    with pytest.raises(ValueError, match="support"):
        pl.LogDensity(lambda p: 0.0, {"a": torch.zeros(2)}, support={"b": constraints.positive})
    with pytest.raises(ValueError, match="lie in its support"):
        pl.LogDensity(lambda p: 0.0, {"a": -torch.ones(2)}, support={"a": constraints.positive})
    vector = pl.LogDensity(lambda p: -(p["a"] ** 2), {"a": torch.zeros(2)})
    with pytest.raises(ValueError, match="0-d"):
        vector.log_joint({"a": torch.zeros(2)})
    with pytest.raises(pl.NotSupported, match="prior"):
        vector.sample_prior(3)
    with pytest.raises(ValueError, match="data=None"):
        pl.fit(vector, (torch.zeros(3), torch.zeros(3)), pl.HMC(), steps=5, progress=False)


def test_arrays_and_numbers_are_starts_too_and_seeds_scatter_them():
    density = pl.LogDensity(lambda p: -(p["a"] ** 2).sum() - p["b"] ** 2, {"a": np.zeros(3), "b": 1})
    assert density.start["a"].dtype == torch.float64 and density.start["b"].is_floating_point()
    assert torch.equal(density.init(3)["a"], density.init(3)["a"])
    assert not torch.equal(density.init(3)["a"], density.init(4)["a"])


def test_map_finds_its_highest_point_in_unconstrained_space():
    posterior = pl.fit(gamma_density(), None, pl.MAP(learning_rate=0.05), steps=800, progress=False, compile=False)
    # log joint = 2u − 3eᵘ + u (Jacobian): highest at eᵘ = 1.
    assert posterior.mean["rate"].item() == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(pl.NotSupported, match="BayesianModel"):
        posterior.predict(torch.zeros(1, 1))
