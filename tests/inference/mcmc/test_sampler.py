"""What all samplers of all data share: where they may start, what they learn, and how they show that they failed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.inference.mcmc.truth import CORRELATED, chains_of, conditioned, normal, statistic

import plausible as pl
from plausible.core.diagnostics import e_bfmi, e_bfmi_of_all_steps
from plausible.inference.mcmc import kept_draws
from plausible.inference.mcmc.mass import make_mass
from plausible.weights.algebra import to_vector

QUIET = {"progress": False, "device": "cpu", "compile": False}
METHODS = [pl.HMC(warmup=2), pl.NUTS(warmup=2), pl.MALA(warmup=2), pl.Metropolis(warmup=2)]
every_sampler = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float64)


@every_sampler
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_start_without_density_is_an_error_that_names_it(method, value):
    density = pl.LogDensity(lambda p: torch.where(p["x"].sum() < 2, value, -0.5 * (p["x"] ** 2).sum()), {"x": zeros(2)})
    start = {"x": torch.tensor([[3.0, 0.0], [1.0, 0.0]]).double()}
    with pytest.raises(ValueError, match=f"the log joint is {value:g} where mode 1 starts"):
        pl.fit(density, None, method, steps=5, num_modes=2, init=start, **QUIET)


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda m: type(m).__name__)
def test_a_start_without_a_slope_is_an_error_that_names_it(method):
    density = pl.LogDensity(lambda p: -p["x"].sum().sqrt(), {"x": zeros(1)})
    with pytest.raises(ValueError, match="slope of the log joint is not finite where mode 0 starts"):
        pl.fit(density, None, method, steps=5, **QUIET)


@pytest.mark.parametrize(
    "method",
    [
        pl.HMC(step_size=1e3, warmup=2),
        pl.NUTS(step_size=1e3, warmup=2),
        pl.MALA(step_size=1e3, warmup=2),
        pl.Metropolis(scale=1e6, warmup=2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_chains_that_never_accept_are_reported(method):
    posterior = pl.fit(normal(zeros(2), CORRELATED), None, method, steps=30, num_modes=2, seed=1, **QUIET)
    found = posterior.diagnostics()
    assert not found.ok and any("hardly ever accepted" in m for m in found.messages)


@pytest.mark.parametrize("kind", ["diagonal", "full", "blended"])
def test_a_mass_is_the_covariance_of_the_draws_that_it_saw(kind):
    covariance = conditioned(3, 50.0)
    root = torch.linalg.cholesky(covariance)
    draws = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ root.T + 2.0
    rule = make_mass(kind)
    mass, on = rule.init(draws[0]), torch.tensor(True)
    for draw in draws:
        mass = rule.observed(mass, draw, on)
    mass = rule.renewed(rule.observed(mass, draws[0] + 1e6, ~on))
    eye = torch.eye(3, dtype=torch.float64)
    outward = torch.stack([rule.outward(mass, e) for e in eye], 1)
    expected = torch.diag(draws.T.cov().diagonal()) if kind == "diagonal" else draws.T.cov()
    torch.testing.assert_close(outward @ outward.T, expected, rtol=5e-3, atol=2e-3)
    torch.testing.assert_close(torch.stack([rule.inward(mass, e) for e in eye], 1), outward.T)
    slope = torch.tensor([1.0, -2.0, 0.5]).double()
    torch.testing.assert_close(rule.inward_inverse(mass, rule.inward(mass, slope)), slope)


def test_a_mass_from_slopes_is_a_normal_posterior_s_covariance_however_little_of_it_the_draws_have_seen():
    covariance, rng = conditioned(4, 1e4), torch.Generator().manual_seed(0)
    variances, axes = torch.linalg.eigh(covariance)
    seen = torch.tensor(
        [1.0, 0.5, 0.2, 0.05], dtype=torch.float64
    )  # of the deviations, from the narrowest to the widest
    draws = (torch.randn(200, 4, generator=rng, dtype=torch.float64) * seen * variances.sqrt()) @ axes.T + 2.0
    rule, on = make_mass("sloped"), torch.tensor(True)
    mass = rule.init(draws[0])
    for _ in range(4):
        for draw in draws:
            slope = rule.inward(mass, -torch.linalg.solve(covariance, draw))
            mass = rule.observed(mass, draw, on, slope)
        slope = rule.inward_inverse(mass, slope)  # what it was in the unknowns
        torch.testing.assert_close(slope, -torch.linalg.solve(covariance, draws[-1]))
        mass = rule.renewed(mass)
    whitened = torch.linalg.solve_triangular(mass["root"], torch.linalg.cholesky(covariance), upper=False)
    scales = torch.linalg.svdvals(whitened)  # all one where the root is the covariance's
    assert scales.max() < 1.1 and scales.min() > 0.9


def test_a_covariance_of_few_draws_is_believed_in_its_diagonal_only():
    draws = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    rule = make_mass("blended")
    mass = rule.init(draws[0])
    for draw in draws:
        mass = rule.observed(mass, draw, torch.tensor(True))
    root = rule.renewed(mass)["root"]
    covariance = root @ root.T
    assert covariance[0, 1] / covariance[0, 0] < 0.1  # the draws' own correlation is 1


@pytest.mark.parametrize("mass", ["diagonal", "full", "identity"])
def test_the_slope_that_a_state_holds_is_that_of_its_point_in_its_mass(mass):
    """Nothing computes it again: it is carried through acceptances and through renewals of the mass."""
    density = normal(zeros(3), conditioned(3, 10.0))
    seen = []

    class Watched(pl.HMC):
        def adapt(self, model, state, step):
            state = super().adapt(model, state, step)
            _, slope = density.slope(state["params"])
            seen.append((state["slope"], self.mass_rule.inward(state["mass"], to_vector(slope))))
            return state

    pl.fit(density, None, Watched(mass=mass, warmup=40), steps=45, seed=0, **QUIET)
    assert len(seen) > 3
    for held, fresh in seen:
        torch.testing.assert_close(held, fresh)


@pytest.mark.parametrize(("size", "target"), [(1, 0.44), (6, 0.234)])
def test_a_random_walk_is_accepted_as_often_as_serves_it_best(size, target):
    density = normal(zeros(size), conditioned(size, 9.0) if size > 1 else torch.eye(1, dtype=torch.float64))
    posterior = pl.fit(density, None, pl.Metropolis(warmup=300), steps=400, num_modes=64, seed=1, **QUIET)
    assert abs(float(statistic(posterior, "acceptance").mean()) - target) < 0.08


def test_langevin_steps_are_accepted_as_often_as_serves_them_best():
    density = normal(zeros(6), conditioned(6, 9.0))
    posterior = pl.fit(density, None, pl.MALA(warmup=200), steps=280, num_modes=64, seed=1, **QUIET)
    assert abs(float(statistic(posterior, "acceptance").mean()) - 0.574) < 0.12


@pytest.mark.parametrize("vectorise", [True, False])
def test_a_random_walk_never_asks_for_a_slope(vectorise):
    smooth = normal(zeros(2), CORRELATED)
    density = pl.LogDensity(lambda p: smooth.log_prob(p).detach(), {"x": zeros(2)})
    settings = {**QUIET, "steps": 30, "num_modes": 2, "vectorise": vectorise}
    posterior = pl.fit(density, None, pl.Metropolis(scale=0.7, warmup=5), **settings)
    assert len(chains_of(posterior)[0].unique(dim=0)) > 3


@pytest.mark.parametrize("kind", [pl.HMC, pl.NUTS])
def test_divergences_of_steps_that_are_not_kept_are_counted_beside_the_next_draw_that_is(kind):
    wall = 1.0  # beyond it there is no density, and a trajectory that ends there has diverged
    density = pl.LogDensity(
        lambda p: torch.where(p["x"][0] > wall, -math.inf, -0.5 * (p["x"] ** 2).sum()), {"x": zeros(3)}
    )
    every, some = (
        statistic(pl.fit(density, None, kind(step_size=0.4, warmup=4, thin=thin), steps=64, **QUIET), "divergent")
        for thin in (1, 5)
    )
    assert torch.equal(every.reshape(12, 5).sum(1), some.reshape(12)) and 3 < every.sum() < 57


@pytest.mark.parametrize("kind", [pl.HMC, pl.NUTS])
def test_e_bfmi_of_a_thinned_chain_is_that_of_every_step(kind):
    density = pl.LogDensity(lambda p: -0.5 * (p["x"] ** 2).sum() - (p["x"] ** 4).sum() + 1e6, {"x": zeros(3)})
    every, some = (
        pl.fit(density, None, kind(step_size=0.4, warmup=4, thin=thin), steps=44, num_modes=2, seed=2, **QUIET)
        for thin in (1, 5)
    )
    expected = e_bfmi(statistic(every, "energy"))
    found = e_bfmi_of_all_steps({k: statistic(some, k) for k in some.components[0].statistics})
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
    assert not torch.allclose(
        e_bfmi(statistic(some, "energy")), expected, rtol=0.1
    )  # what the kept draws alone would say
    torch.testing.assert_close(statistic(every, "energy")[:, 4::5], statistic(some, "energy"))


def test_draws_beyond_the_budget_are_thinned_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(kept_draws, "DRAW_BUDGET", 4 * 16)  # four draws of two unknowns
    posterior = pl.fit(normal(zeros(2), CORRELATED), None, pl.Metropolis(warmup=2), steps=10, **QUIET)
    assert len(posterior) == 4 and "every 2-th draw is kept" in caplog.text


@every_sampler
def test_a_thinning_that_would_keep_no_draw_is_refused_before_anything_runs(method):
    with pytest.raises(ValueError, match="no draw would be kept: every 9-th of the 8 steps after warm-up"):
        pl.fit(normal(zeros(2), CORRELATED), None, replace(method, thin=9), steps=10, **QUIET)


@every_sampler
def test_augmentation_of_all_data_at_once_is_refused_with_the_way_out(method):
    model, data = (
        pl.BayesianModel(torch.nn.Linear(2, 1), pl.likelihoods.Normal()),
        (torch.zeros(3, 2), torch.zeros(3, 1)),
    )
    with pytest.raises(pl.NotSupported, match=f"{type(method).__name__} sees all data.*SGHMC"):
        pl.fit(model, data, method, steps=10, augment=lambda x: x, **QUIET)


def test_what_a_callback_keeps_of_a_step_is_not_changed_by_later_ones():
    kept, told = [], []

    def note(event):
        kept.append(event["leapfrogs"])
        told.append(float(event["leapfrogs"]))

    pl.fit(normal(zeros(2), CORRELATED), None, pl.HMC(warmup=30), steps=40, callbacks=[note], **QUIET)
    assert [float(value) for value in kept] == told and len(set(told)) > 1


def test_a_covariance_that_rounding_makes_indefinite_leaves_its_widths():
    rule, wide = make_mass("full"), torch.tensor([1e4, 1.0])
    mass = {**rule.init(torch.zeros(2)), "count": torch.tensor(501.0)}
    squares = 500 * torch.outer(wide, wide) * torch.tensor([[1.0, 1.001], [1.001, 1.0]])
    root = rule.renewed({**mass, "squares": squares})["root"]
    torch.testing.assert_close(root, torch.diag(wide), rtol=0.01, atol=0.0)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (pl.MALA, {"step_size": 0.0}),
        (pl.MALA, {"thin": 0}),
        (pl.Metropolis, {"scale": -1.0}),
        (pl.Metropolis, {"warmup": -1}),
        (pl.MALA, {"step_size": math.inf}),
        (pl.Metropolis, {"scale": math.nan}),
        (pl.HMC, {"step_size": math.inf}),
        (pl.HMC, {"trajectory_length": math.inf}),
        (pl.NUTS, {"step_size": math.inf}),
    ],
    ids=[
        "MALA-step_size",
        "MALA-thin",
        "Metropolis-scale",
        "Metropolis-warmup",
        "MALA-infinite",
        "Metropolis-missing",
        "HMC-infinite",
        "HMC-endless",
        "NUTS-infinite",
    ],
)
def test_wrong_settings_are_refused_when_they_are_given(kind, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kind(**wrong)


@every_sampler
def test_a_warm_up_of_half_a_step_is_refused_before_anything_runs(method):
    with pytest.raises(ValueError, match="warm-up must be a whole number of steps, got 2.5"):
        pl.fit(normal(zeros(2), CORRELATED), None, replace(method, warmup=2.5), steps=10, **QUIET)


def test_a_model_of_a_network_has_the_same_log_joint_with_and_without_a_slope():
    x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(9, 1)
    for prior in (pl.priors.Normal(scale=0.5), pl.priors.Laplace(scale=0.5), pl.priors.StudentT(df=4.0)):
        model = pl.BayesianModel(torch.nn.Linear(2, 1), pl.likelihoods.Normal(), prior=prior, temperature=0.5)
        method = pl.Metropolis(scale=0.1, warmup=1)
        posterior = pl.fit(model, (x, y), method, steps=6, seed=0, **QUIET)
        last = {k: v[-1] for k, v in posterior.draws.items()}
        torch.testing.assert_close(posterior.statistics["log_joint"][-1], model.log_joint(last, (x, y), num_data=9))


def test_a_vectorised_chain_of_every_sampler_has_the_draws_of_its_lone_twin():
    density = normal(zeros(2), CORRELATED)
    for method in METHODS:
        together, apart = (
            pl.fit(density, None, method, steps=8, num_modes=2, seed=3, vectorise=v, **QUIET) for v in (True, False)
        )
        torch.testing.assert_close(chains_of(together), chains_of(apart), rtol=1e-9, atol=1e-9)
