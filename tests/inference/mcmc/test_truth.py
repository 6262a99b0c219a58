"""Every sampler of all data against laws that are known, and the tests against samplers that are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from tests.inference.mcmc.truth import (
    CORRELATED,
    LAWS,
    assert_law,
    assert_laws,
    chains_of,
    laws_at_once,
    normal,
    statistic,
)
from tests.oracles import assert_chains, effective_size, linear_regression

import plausible as pl

QUIET = {"progress": False, "device": "cpu"}
MEAN = torch.tensor([1.0, -2.0], dtype=torch.float64)

# No adaptation and many short chains: what is left is the update rule, and a coarse step makes it reject.
BARE = {
    "HMC": (pl.HMC(step_size=0.6, trajectory_length=1.8, mass="identity", warmup=15), 40, 768),
    "NUTS": (pl.NUTS(step_size=0.6, mass="identity", warmup=12), 36, 1536),
    "MALA": (pl.MALA(step_size=0.8, warmup=15), 60, 2048),
    "Metropolis": (pl.Metropolis(scale=1.5, warmup=18), 70, 3072),
}


@pytest.mark.parametrize("name", BARE)
def test_without_adaptation_a_correlated_normal_has_its_moments(name):
    method, steps, chains = BARE[name]
    start = {"x": MEAN + torch.randn(chains, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    density = normal(MEAN, CORRELATED)
    posterior = pl.fit(density, None, method, steps=steps, num_modes=chains, init=start, seed=2, compile=False, **QUIET)
    assert_chains(chains_of(posterior), MEAN, CORRELATED)


ADAPTED = {
    "HMC": (pl.HMC(mass="full", warmup=400), 800, 64, LAWS, 1e4),
    "NUTS": (pl.NUTS(mass="full", max_depth=6, warmup=300), 1100, 64, LAWS, 1e4),
    "MALA": (pl.MALA(warmup=600), 1800, 64, LAWS, 1e4),
    # The draws of a random walk are the more alike the more dimensions there are, so that two runs are shorter than one.
    "Metropolis-narrow": (pl.Metropolis(warmup=3000, thin=2), 8000, 96, ("ill",), 1e2),
    "Metropolis-others": (pl.Metropolis(warmup=2000, thin=2), 6000, 80, ("correlated", "student_t", "worse"), 1e2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTED)
def test_four_laws_have_their_means_deviations_and_correlations(name):
    method, steps, chains, laws, condition = ADAPTED[name]
    target = laws_at_once(laws, condition)
    compile = name != "MALA"  # whose few steps take less time than a compiler
    posterior = pl.fit(target, None, method, steps=steps, num_modes=chains, seed=3, compile=compile, **QUIET)
    assert_laws(posterior, laws, condition)


CONJUGATE = {
    "NUTS": (pl.NUTS(mass="full", warmup=150), 450),
    "MALA": (pl.MALA(warmup=1000), 3000),
    "Metropolis": (pl.Metropolis(warmup=2000, thin=2), 8000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONJUGATE)
def test_conjugate_regression_has_its_closed_form_posterior(name):
    truth = linear_regression(n=15, inputs=2, noise=0.5, seed=9)
    method, steps = CONJUGATE[name]
    posterior = pl.fit(truth.model(), truth.data(), method, steps=steps, num_modes=64, seed=7, compile=True, **QUIET)
    draws = torch.cat([chains_of(posterior, "weight"), chains_of(posterior, "bias")], -1)
    assert_law(draws, truth.mean, truth.covariance)


# --- the test of the tests ---


@dataclass(frozen=True, kw_only=True)
class AlwaysAccepts(pl.HMC):
    """Leapfrogs without a correction, which sample a normal whose variance is too large."""

    def end(self, model, state, walk, rng):
        energy = walk["log_joint"] - 0.5 * (walk["momentum"] * walk["momentum"]).sum()
        return super().end(model, state, {**walk, "energy": energy}, rng)


@dataclass(frozen=True, kw_only=True)
class WrongHalfStep(AlwaysAccepts):
    """Two hundredths too much at the end of every leapfrog, and nothing that corrects it."""

    def move(self, model, walk, batch):
        walk = super().move(model, walk, batch)
        return {**walk, "momentum": walk["momentum"] + 0.01 * walk["step_size"] * walk["slope"]}


@dataclass(frozen=True, kw_only=True)
class TakesTheLastLeaf(pl.NUTS):
    """A tree's end in place of a draw from it."""

    def end(self, model, state, walk, rng):
        return super().end(model, state, {**walk, "draw": walk["leaf"]}, rng)


@pytest.mark.parametrize(
    "wrong",
    [
        AlwaysAccepts(step_size=0.6, trajectory_length=1.8, mass="identity", warmup=15),
        WrongHalfStep(step_size=0.4, trajectory_length=1.6, mass="identity", warmup=15),
        TakesTheLastLeaf(step_size=0.6, mass="identity", max_depth=2, warmup=12),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_wrong_sampler_does_not_pass(wrong):
    density = normal(MEAN, CORRELATED)
    posterior = pl.fit(density, None, wrong, steps=32, num_modes=1024, seed=2, compile=False, **QUIET)
    with pytest.raises(AssertionError, match="Monte Carlo errors off"):
        assert_chains(chains_of(posterior), MEAN, CORRELATED, min_ess=4000)


# --- funnels and walls ---


def funnel(centred: bool, size: int = 4) -> pl.LogDensity:
    """Neal's: v ~ N(0, 3²), x ~ N(0, exp(v)); centred in x itself, else in x / exp(v / 2)."""

    def log_prob(p):
        v, x = p["v"], p["x"]
        rest = -0.5 * (x * x).sum() * (torch.exp(-v) if centred else 1.0) - (0.5 * size * v if centred else 0.0)
        return rest - v * v / 18.0

    return pl.LogDensity(log_prob, {"v": torch.zeros((), dtype=torch.float64), "x": torch.zeros(size).double()})


@pytest.mark.parametrize("method", [pl.HMC(warmup=20), pl.NUTS(warmup=20, max_depth=3)], ids=["HMC", "NUTS"])
def test_a_centred_funnel_is_flagged(method):
    posterior = pl.fit(funnel(centred=True), None, method, steps=100, num_modes=32, seed=1, compile=False, **QUIET)
    assert statistic(posterior, "divergent").sum() > 0
    found = posterior.diagnostics()
    assert not found.ok and any("diverged" in m for m in found.messages)


@pytest.mark.slow
def test_a_funnel_that_is_not_centred_has_its_log_scale():
    posterior = pl.fit(
        funnel(centred=False), None, pl.NUTS(warmup=200), steps=700, num_modes=64, seed=1, compile=True, **QUIET
    )
    variance = torch.tensor([[9.0]], dtype=torch.float64)
    assert_law(chains_of(posterior, "v"), torch.zeros(1, dtype=torch.float64), variance)
    assert statistic(posterior, "divergent").sum() == 0


@pytest.mark.parametrize(
    ("name", "beyond"),
    [("HMC", "nan"), ("NUTS", "nan"), ("MALA", "nan"), ("Metropolis", "nan"), ("HMC", "-inf"), ("Metropolis", "inf")],
)
def test_where_the_density_is_not_finite_nothing_is_accepted(name, beyond):
    """A standard normal cut off at 1, with nonsense beyond: the truncated normal's mean says whether rejections count."""
    method, chains = BARE[name][0], 256

    def log_prob(p):
        wall = torch.where(p["x"][0] > 1.0, float(beyond), 0.0)
        return wall - 0.5 * p["x"] @ p["x"]

    density = pl.LogDensity(log_prob, {"x": torch.zeros(2, dtype=torch.float64)})
    start = {"x": torch.rand(chains, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2 - 1}
    posterior = pl.fit(density, None, method, steps=30, num_modes=chains, init=start, seed=4, compile=False, **QUIET)
    draws = chains_of(posterior)[..., 0]
    assert draws.isfinite().all() and draws.max() <= 1.0
    assert abs(draws.numpy().mean() - stats.truncnorm(-torch.inf, 1.0).mean()) < 4 * draws.std() / (
        effective_size(draws.numpy()) ** 0.5
    )
    if name in ("HMC", "NUTS"):
        assert statistic(posterior, "divergent").mean() > 0.01
