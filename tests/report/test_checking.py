"""Right methods are called right, and methods that are wrong on purpose are called wrong."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import plausible as pl
from plausible.cli import app
from plausible.core.model import InternalBatch
from plausible.report.check_subjects import SUBJECTS
from plausible.report.checking import BayesianModel, Subject, check, linear_model, problem, simulation_based

EXACT = pl.Laplace(structure="full", base=pl.MAP(learning_rate=0.05))
CHAINS = Subject(method=pl.HMC(), steps=400, chains=4)


def subject(method, **settings):
    return Subject(**{"method": method, "slack": 0.01, "steps": 600, **settings})


def found(method, name="it", model=linear_model, **settings):
    return check(name, subject(method, **settings), model=model)


def test_the_closed_form_is_the_posterior_by_brute_force():
    truth = problem()
    rng = torch.Generator().manual_seed(0)
    draws = 0.5 * torch.randn(400_000, 3, generator=rng, dtype=torch.float64)
    residuals = truth.y.T - draws @ truth.x.T
    weights = torch.softmax(-0.5 * residuals.square().sum(1), 0)
    mean = weights @ draws
    covariance = (draws - mean).T @ ((draws - mean) * weights[:, None])
    assert mean == pytest.approx(truth.mean.numpy(), abs=0.01)
    assert covariance == pytest.approx(truth.covariance.numpy(), abs=0.005)
    # Correlated, so that a transposed factor shows.
    assert truth.covariance[0, 1].abs() / truth.covariance[0, 0] > 0.3


def test_an_exact_method_is_right():
    finding = found(EXACT)
    assert finding.right and set(finding.numbers) == {"mean", "sd", "correlation"}


# --- wrong on purpose ---


class Widened(pl.Laplace):
    """Its noise is √2 times what it should be."""

    def survey(self, model, state, sweep, validation):
        right = super().survey(model, state, sweep, validation)
        return pl.posteriors.Full(model, right.mean, 2 * covariance_of(right))


class Transposed(pl.Laplace):
    """Draws with Lᵀ in place of L."""

    def survey(self, model, state, sweep, validation):
        right = super().survey(model, state, sweep, validation)
        factor = torch.linalg.cholesky(covariance_of(right))
        return pl.posteriors.Full(model, right.mean, factor.T @ factor)


class Shifted(pl.Laplace):
    """Its mean is a fifth of a standard deviation off."""

    def survey(self, model, state, sweep, validation):
        right = super().survey(model, state, sweep, validation)
        covariance = covariance_of(right)
        mean = {"weight": right.mean["weight"] + 0.2 * covariance.diagonal().sqrt()}
        return pl.posteriors.Full(model, mean, covariance)


def covariance_of(posterior):
    draws = posterior.sample(200_000, seed=5)["weight"].reshape(-1, 3)
    return torch.cov(draws.T)


def wrong(kind):
    return kind(structure="full", base=pl.MAP(learning_rate=0.05))


@pytest.mark.parametrize(
    ("kind", "what"),
    [(Widened, "sd"), (Transposed, "correlation"), (Shifted, "mean")],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_wrong_draws_are_called_wrong(kind, what):
    finding = found(wrong(kind))
    assert not finding.right and any(failure.startswith(what) for failure in finding.failures)


def without_prior():
    return linear_model().with_prior(pl.priors.Normal(scale=1e3))


class Miscounted(BayesianModel):
    """Counts the examples of a batch of 8 as all there are."""

    def _weighted_log_likelihoods(self, params, batch, key=None):
        return super()._weighted_log_likelihoods(params, batch, key) * (8 / 24)


def miscounted():
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    return Miscounted(network, pl.likelihoods.Normal(scale=1.0), prior=pl.priors.Normal(scale=0.5))


@pytest.mark.parametrize("model", [without_prior, miscounted], ids=lambda f: f.__name__)
def test_a_dropped_prior_and_a_wrong_n_are_called_wrong(model):
    assert not found(EXACT, model=model).right
    assert not found(pl.MAP(learning_rate=0.05), model=model, claim="posterior").right


def too_warm():
    """A sampler of this model scales its noise by √2."""
    return pl.BayesianModel(
        linear_model().source, pl.likelihoods.Normal(scale=1.0), pl.priors.Normal(scale=0.5), temperature=2.0
    )


@pytest.mark.slow
def test_chains_and_simulations_tell_noise_that_is_too_large():
    assert check("hmc", CHAINS).right
    assert not check("hmc", CHAINS, model=too_warm).right
    simulated = Subject(method=pl.HMC(), steps=800, simulations=250)
    right, hot = (simulation_based(simulated, 0, model) for model in (linear_model, too_warm))
    assert all(z <= allowed for z, allowed in right.values())
    assert any(z > allowed for z, allowed in hot.values())


class Unscaled(pl.SGLD):
    """Takes the gradient of a batch for that of all data."""

    def moved(self, model, state, batch, rng, multiple, heat):
        inputs, targets, weights = batch
        return super().moved(
            model, state, InternalBatch((inputs, targets, torch.ones_like(weights))), rng, multiple, heat
        )


@pytest.mark.slow
def test_a_gradient_on_the_scale_of_its_batch_is_called_wrong():
    finding = check("sgld", replace(SUBJECTS["sgld"], method=Unscaled(step_size=0.003), steps=3000, chains=4))
    assert any("sd is off" in failure for failure in finding.failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_method_is_right(name):
    finding = check(name, SUBJECTS[name])
    assert finding.right, finding.failures


# --- the command ---


def test_the_command_prints_a_verdict():
    result = CliRunner().invoke(app, ["check", "--methods", "map"])
    assert result.exit_code == 0, result.output
    assert "right" in result.output


def test_a_wrong_method_makes_the_command_fail(monkeypatch):
    monkeypatch.setitem(SUBJECTS, "map", subject(wrong(Widened)))
    result = CliRunner().invoke(app, ["check", "--methods", "map"])
    assert result.exit_code == 1
    assert "WRONG" in result.output and "sd is off" in result.output


def test_a_method_that_stops_is_wrong_and_the_others_are_checked_all_the_same(monkeypatch):
    monkeypatch.setitem(SUBJECTS, "natural-gradient-vi", subject(pl.SGLD(step_size=1e100), steps=5))
    result = CliRunner().invoke(app, ["check", "--methods", "natural-gradient-vi,map"])
    assert result.exit_code == 1
    assert "it stopped with FloatingPointError" in " ".join(result.output.split())
    rows = [line.split() for line in result.output.splitlines() if line.rstrip().endswith(("right", "WRONG"))]
    assert [(row[0], row[-1]) for row in rows] == [("natural-gradient-vi", "WRONG"), ("map", "right")]


def test_an_unknown_method_is_refused():
    result = CliRunner().invoke(app, ["check", "--methods", "astrology"])
    assert result.exit_code == 2 and "astrology" in result.output
