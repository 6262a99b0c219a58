"""Steps that are shorter where the posterior is stiff: the law stays what it is, and no chain stands still for long."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from tests.inference.mcmc.truth import CORRELATED, chains_of, normal, statistic
from torch import Tensor

import plausible as pl
from plausible.inference.mcmc.local_steps import (
    drawn,
    log_chance,
    log_pull,
    nothing_seen,
    seen,
    usual_pull,
    wanted_halvings,
)

QUIET = {"progress": False, "device": "cpu", "compile": False}
SIZE = 4  # unknowns in the funnel's neck
NEVER = 1e9  # a log pull that nothing has


@dataclass(frozen=True, kw_only=True)
class WarmedUp(pl.NUTS):
    """A chain whose warm-up lies behind it, with what it is told to have found."""

    warmup: int | None = 0
    mass: str = "identity"
    found_step: float
    usual: float  # the log pull up to which steps are not halved

    def init(self, model, params):
        state = super().init(model, params)
        zero = torch.zeros_like(state["log_joint"])
        found = {**state["tuning"], "log_mean_step": zero + math.log(self.found_step)}
        return {**state, "tuning": found, "usual_pull": zero + self.usual}


class ForgetsTheChance(WarmedUp):
    """Lets the point choose the step size, and draws from the tree as if it had not."""

    def _leaf_weight(self, walk, slope, weight):
        return weight


def funnel() -> pl.LogDensity:
    """v ~ N(0, 1) and x ~ N(0, exp(2 v)): at v = −2 steps must be an eighth of what they may be at v = 0."""

    def log_prob(p):
        v, x = p["v"], p["x"]
        return -0.5 * v * v - 0.5 * (x * x).sum() * torch.exp(-2 * v) - SIZE * v

    return pl.LogDensity(log_prob, {"v": torch.zeros((), dtype=torch.float64), "x": torch.zeros(SIZE).double()})


def draws_of_the_funnel(chains: int, v: float | None = None) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    at = torch.randn(chains, generator=rng, dtype=torch.float64) if v is None else torch.full((chains,), v).double()
    return {"v": at, "x": at.exp().unsqueeze(1) * torch.randn(chains, SIZE, generator=rng, dtype=torch.float64)}


def errors_off(found: Tensor, truth: float) -> float:
    """How many Monte Carlo errors the mean over independent chains is off."""
    return float((found.mean() - truth) / (found.std() / len(found) ** 0.5))


# --- the law stays what it is ---


def funnel_moments_off(kind: type[WarmedUp]) -> list[float]:
    """Chains that start from the law itself, and whose coarse steps are halved at most points, after six transitions."""
    method = kind(found_step=0.6, usual=1.0, max_depth=4)
    start = draws_of_the_funnel(2048)
    posterior = pl.fit(funnel(), None, method, steps=6, num_modes=2048, init=start, seed=2, **QUIET)
    v = chains_of(posterior, "v")[:, -1, 0]
    squares = (chains_of(posterior, "x")[:, -1] ** 2).mean(1) * torch.exp(-2 * v)
    moments = [(v, 0.0), (v * v, 1.0), (squares, 1.0), (v * squares, 0.0)]
    return [errors_off(found, truth) for found, truth in moments]


def test_a_step_size_that_the_point_chooses_leaves_a_funnel_its_moments():
    off = funnel_moments_off(WarmedUp)
    assert max(map(abs, off)) < 4, f"the moments are {off} Monte Carlo errors off"


def test_a_tree_that_forgets_how_its_step_size_was_chosen_does_not_pass():
    assert max(map(abs, funnel_moments_off(ForgetsTheChance))) > 6


def test_a_step_size_that_the_point_chooses_leaves_a_normal_its_moments():
    rng = torch.Generator().manual_seed(1)
    start = torch.randn(3072, 2, generator=rng, dtype=torch.float64) @ torch.linalg.cholesky(CORRELATED).T
    method = WarmedUp(found_step=1.0, usual=0.0, max_depth=4)
    density = normal(torch.zeros(2, dtype=torch.float64), CORRELATED)
    posterior = pl.fit(density, None, method, steps=6, num_modes=3072, init={"x": start}, seed=2, **QUIET)
    x, y = chains_of(posterior)[:, -1].unbind(1)
    off = [errors_off(f, t) for f, t in ((x, 0.0), (y, 0.0), (x * x, 1.0), (y * y, 1.0), (x * y, 0.75))]
    assert max(map(abs, off)) < 4, f"the moments are {off} Monte Carlo errors off"


# --- no chain stands still ---


def test_a_chain_in_a_neck_that_its_step_size_does_not_suit_moves_on():
    """At v = −2.5 leapfrogs of 0.25 are unstable: without halvings most chains never take a step."""
    start = draws_of_the_funnel(128, v=-2.5)
    still = {}
    for usual in (NEVER, 1.0):
        method = WarmedUp(found_step=0.25, usual=usual, max_depth=5)
        posterior = pl.fit(funnel(), None, method, steps=16, num_modes=128, init=start, seed=2, **QUIET)
        v = chains_of(posterior, "v")[..., 0]
        still[usual] = float((v[:, -1] == -2.5).double().mean())
    assert still[NEVER] > 0.7 and still[1.0] < 0.05
    assert statistic(posterior, "acceptance").mean() > 0.6


@pytest.mark.slow
def test_after_a_warm_up_of_its_own_a_chain_goes_as_deep_into_a_funnel_as_it_should():
    """Without halvings the share of the neck is ten Monte Carlo errors too low: few chains come into it any more.

    The first three hundred draws still show where warm-up, whose steps follow the chain, left it.
    """
    chains, start = 512, draws_of_the_funnel(512)
    posterior = pl.fit(
        funnel(), None, pl.NUTS(warmup=160, max_depth=7), steps=960, num_modes=chains, init=start, seed=4, progress=False,
        device="cpu", compile=True,
    )  # fmt: skip
    v = chains_of(posterior, "v")[:, 300:, 0]
    deep = (v < -2).double().mean(1)
    off = [errors_off(v.mean(1), 0.0), errors_off((v * v).mean(1), 1.0), errors_off(deep, stats.norm.cdf(-2.0))]
    assert max(map(abs, off)) < 4, f"mean, square and share of the neck are {off} Monte Carlo errors off"


# --- how ---


def test_a_chain_whose_steps_are_halved_has_the_draws_of_its_lone_twin():
    start = draws_of_the_funnel(4, v=-2.0)
    method = WarmedUp(found_step=0.25, usual=1.0, max_depth=4)
    together, apart = (
        pl.fit(funnel(), None, method, steps=6, num_modes=4, init=start, seed=3, vectorise=v, **QUIET)
        for v in (True, False)
    )
    assert len(statistic(together, "leapfrogs").unique()) > 1
    torch.testing.assert_close(chains_of(together, "x"), chains_of(apart, "x"), rtol=1e-9, atol=1e-9)


def test_a_step_is_halved_once_for_every_fourfold_of_the_squared_pull():
    step, usual = torch.tensor(0.5).double(), torch.tensor(math.log(0.25)).double()
    slopes = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 1e200], dtype=torch.float64).unsqueeze(1)
    wanted = torch.stack([wanted_halvings(log_pull(slope, step), usual) for slope in slopes])
    torch.testing.assert_close(wanted, torch.tensor([0, 0, 0, 1, 2, 3, 3], dtype=torch.float64))


@pytest.mark.parametrize("wanted", [0.0, 0.4, 0.5, 1.7, 3.0])
def test_halvings_are_drawn_as_often_as_their_chance_says(wanted):
    wanted, every = torch.tensor(wanted, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)
    expected = torch.softmax(-math.log(1000) * (every - wanted) ** 2, 0)
    torch.testing.assert_close(log_chance(every, wanted).exp(), expected)
    uniform = (torch.arange(500, dtype=torch.float64) + 0.5) / 500
    found = [drawn(wanted, u) for u in uniform]
    shares = torch.bincount(torch.stack([h for h, _ in found]).long(), minlength=4) / 500
    torch.testing.assert_close(shares.double(), expected, rtol=0.0, atol=1 / 500)
    for h, chance in found[::50]:
        torch.testing.assert_close(chance.exp(), expected[int(h)])


def test_usual_pulls_are_those_that_were_accepted():
    rng = torch.Generator().manual_seed(0)
    pulls = torch.randn(40, generator=rng, dtype=torch.float64) - 5.0
    acceptance, on = torch.rand(40, generator=rng, dtype=torch.float64), torch.tensor(True)
    sums, slope = nothing_seen(pulls[0]), torch.zeros(50, dtype=torch.float64)
    assert usual_pull(sums, slope) == math.inf
    for pull, accepted in zip(pulls, acceptance, strict=True):
        sums = seen(seen(sums, pull, accepted, on), pull + 30.0, accepted, ~on)
    mean = (acceptance * pulls).sum() / acceptance.sum()
    deviation = ((acceptance * (pulls - mean) ** 2).sum() / acceptance.sum()).sqrt()
    torch.testing.assert_close(usual_pull(sums, slope), mean + deviation + 2 * math.sqrt(2 / 50))


def test_a_given_step_size_is_never_halved():
    events = []
    method = pl.NUTS(step_size=0.25, mass="identity", max_depth=3, warmup=2)
    start = {k: v[0] for k, v in draws_of_the_funnel(1, v=-3.0).items()}
    pl.fit(
        funnel(),
        None,
        method,
        steps=12,
        init=start,
        callbacks=[lambda e: events.append(float(e["step_size"]))],
        **QUIET,
    )
    assert set(events) == {0.25}
