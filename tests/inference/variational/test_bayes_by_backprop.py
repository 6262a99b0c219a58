"""Bayes by backprop against closed forms, and on networks that people bring."""

import math

import pytest
import torch
from tests.oracles import FOUR, linear_regression, vector_of
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import plausible as pl
from plausible.inference.variational import layer_noise
from plausible.inference.variational.mean_field import MeanField, joined
from plausible.weights.rng import run_key


def fitted(regression, steps=500, modes=6, **settings):
    method = pl.BayesByBackprop(**{"learning_rate": 0.05, **settings})
    return pl.fit(
        regression.model(), regression.data(), method, steps=steps, batch_size=len(regression.y), num_modes=modes,
        vectorise=True, progress=False, device="cpu",
    )  # fmt: skip


ESTIMATORS = ["local", *(pytest.param(e, marks=pytest.mark.slow) for e in ("flipout", "weights"))]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_finds_the_best_independent_normals_of_a_linear_regression(estimator):
    regression = linear_regression(n=40)
    # The optimum over independent normals has the posterior's mean and the reciprocal diagonal of its precision.
    sd = torch.linalg.inv(regression.covariance).diagonal().rsqrt()
    found = fitted(regression, estimator=estimator).components
    means = torch.stack([vector_of(q.mean) for q in found])
    # Runs of different noise: their scatter is the Monte Carlo error of each.
    error = means.std(0) / math.sqrt(len(found))
    assert bool(((means.mean(0) - regression.mean).abs() < FOUR * error + 1e-3 * sd).all())
    scales = torch.stack([vector_of(q.scale) for q in found]).mean(0)
    torch.testing.assert_close(scales, sd, rtol=0.05, atol=0)


@pytest.mark.parametrize("steps", [0, 60])
def test_the_evidence_falls_short_of_the_exact_one_by_the_divergence_from_the_posterior(steps):
    regression = linear_regression(n=24)
    posterior = fitted(regression, steps=steps, modes=1)
    own = MultivariateNormal(vector_of(posterior.mean), torch.diag(vector_of(posterior.scale) ** 2))
    lost = kl_divergence(own, MultivariateNormal(regression.mean, regression.covariance)).item()
    evidence = posterior.evidence()
    assert evidence.kind == "lower bound" and 0 < evidence.standard_error < 0.1 * lost
    off = evidence.log_marginal_likelihood.item() - (regression.log_evidence - lost)
    assert abs(off) < FOUR * evidence.standard_error


def test_a_run_that_is_cut_short_says_so():
    diagnostics = fitted(linear_regression(n=40), steps=20, modes=1).diagnostics()
    assert not diagnostics.ok and any("not converged" in m for m in diagnostics.messages)


# --- which weights are drawn through their layer's outputs ---


class Mixed(nn.Module):
    """A layer of every kind."""

    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(5, 4), nn.GRU(4, 4, batch_first=True)
        self.picture, self.norm = nn.Conv1d(4, 4, 2), nn.BatchNorm1d(4)
        self.by_position, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.twice, self.transposed, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.bare = nn.Parameter(torch.eye(4))

    def forward(self, tokens):
        x = self.recurrent(self.embedding(tokens))[0]
        x = self.norm(self.picture(x.transpose(1, 2))).transpose(1, 2)
        x = self.frozen(self.by_position(x)).mean(1)
        x = self.twice(self.twice(x).tanh()) @ self.bare
        return self.out(x @ self.transposed.weight.T)


def mixed_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return pl.BayesianModel(Mixed(), pl.likelihoods.Categorical())


def plan_of(model, estimator, inputs):
    params = model.init()
    batch = (inputs, None, None)
    return layer_noise.make_plan(model.bound(training=True), params, batch, run_key(0), estimator)


def test_only_weights_that_one_layer_uses_once_are_drawn_through_its_outputs():
    plan = plan_of(mixed_model(), "local", torch.arange(12).reshape(4, 3) % 5)
    expected = {
        "picture.weight": "flipout", "picture.bias": "flipout", "by_position.weight": "flipout", "by_position.bias": "flipout",
        "bare": "local", "out.weight": "local", "out.bias": "local",
    }  # fmt: skip
    assert plan == expected
    assert set(plan_of(mixed_model(), "flipout", torch.arange(12).reshape(4, 3) % 5).values()) == {"flipout"}
    assert plan_of(mixed_model(), "weights", torch.arange(12).reshape(4, 3) % 5) == {}


def test_weights_that_are_multiples_of_an_unknown_scale_are_drawn_as_the_model_keeps_them():
    hierarchy = pl.priors.Hierarchical(family=pl.priors.Normal, hyperprior=pl.hyperpriors.HalfNormal())
    model = pl.BayesianModel(nn.Linear(2, 3), pl.likelihoods.Categorical(), hierarchy)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    assert plan_of(model, "local", x) == {}
    settings = {"steps": 4, "progress": False, "device": "cpu"}
    local, plain = (
        pl.fit(model, (x, torch.arange(12) % 3), pl.BayesByBackprop(estimator=e), **settings)
        for e in ("local", "weights")
    )
    assert all(torch.equal(w, plain.mean[k]) for k, w in local.mean.items())


def test_models_of_two_priors_that_share_a_network_have_plans_of_their_own():
    plain = pl.BayesianModel(nn.Linear(2, 3), pl.likelihoods.Categorical())
    assert set(plan_of(plain, "local", torch.zeros(4, 2)).values()) == {"local"}
    assert plan_of(plain.with_prior(pl.priors.Hierarchical()), "local", torch.zeros(4, 2)) == {}
    assert set(plan_of(plain, "local", torch.zeros(4, 5, 2)).values()) == {"flipout"}


class Folded(nn.Module):
    """Folds positions into the axis of examples, where rows are no examples any more."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.inner(x.reshape(-1, 2)).reshape(len(x), -1, 3).mean(1))


def test_rows_that_are_no_examples_share_a_draw_of_the_weights():
    model = pl.BayesianModel(Folded(), pl.likelihoods.Categorical())
    assert plan_of(model, "local", torch.zeros(4, 6)) == {"out.weight": "local", "out.bias": "local"}


@pytest.mark.parametrize("estimator", ["local", pytest.param("flipout", marks=pytest.mark.slow)])
def test_a_network_with_a_layer_of_every_kind_is_fitted(estimator):
    tokens = torch.arange(40).reshape(10, 4) % 5
    method = pl.BayesByBackprop(estimator=estimator, learning_rate=0.02)
    posterior = pl.fit(
        mixed_model(), (tokens, tokens[:, 0] % 3), method, steps=10, batch_size=10, progress=False, device="cpu"
    )
    start = mixed_model().init()
    assert all(not torch.equal(w, start[k]) for k, w in posterior.mean.items())
    assert math.isfinite(posterior.evidence().log_marginal_likelihood)
    assert bool(posterior.predict(tokens, num_samples=4).probs.isfinite().all())


class Fickle(nn.Module):
    """Uses a layer once more after its first pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.again = nn.Linear(2, 2), False

    def forward(self, x):
        out = self.layer(x)
        return self.layer(out) if self.again else out


def test_a_network_that_changes_its_course_is_refused_with_the_way_out():
    model = pl.BayesianModel(Fickle(), pl.likelihoods.Categorical()).bound(training=True, num_data=4.0)
    params = joined(model.init(), {k: torch.zeros_like(w) for k, w in model.init().items()})
    bound, batch = MeanField(model, "local", 1), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), torch.ones(4))
    bound.objective(params, batch, run_key(0))
    model.network.module(torch.device("cpu"), "train").again = True
    with pytest.raises(pl.NotSupported, match='layer.weight was used once .* estimator="weights"'):
        bound.objective(params, batch, run_key(0))


def test_examples_of_zeros_have_finite_slopes():
    """Where a layer without bias sees only zeros, its outputs do not vary, and a root has no slope at zero."""
    model = pl.BayesianModel(nn.Linear(2, 3, bias=False), pl.likelihoods.Categorical())
    data = (torch.zeros(8, 2), torch.arange(8) % 3)
    posterior = pl.fit(model, data, pl.BayesByBackprop(), steps=5, progress=False, device="cpu")
    assert all(bool(w.isfinite().all()) for w in (*posterior.mean.values(), *posterior.scale.values()))


# --- the rest of the sentence ---


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_runs_in_mixed_precision(precision):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    model = pl.BayesianModel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), pl.likelihoods.Categorical())
    data = (x, (x[:, 0] > 0).long())
    scores = [
        pl.fit(
            model, data, pl.BayesByBackprop(learning_rate=0.02), steps=20, precision=p, progress=False, device="cpu"
        ).evidence()
        for p in (precision, None)
    ]
    # Half precision's noise moves the weights, not what they are worth.
    assert scores[0].log_marginal_likelihood.item() == pytest.approx(scores[1].log_marginal_likelihood.item(), rel=0.05)


def test_a_log_density_without_a_network_is_fitted():
    target = torch.distributions.Normal(torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 2.0]).double())
    density = pl.LogDensity(lambda p: target.log_prob(p["w"]).sum(), {"w": torch.zeros(2, dtype=torch.float64)})
    method = pl.BayesByBackprop(learning_rate=0.1, initial_scale=1.0)
    posterior = pl.fit(density, None, method, steps=200, progress=False, device="cpu")
    lost = kl_divergence(torch.distributions.Normal(posterior.mean["w"], posterior.scale["w"]), target).sum().item()
    assert lost < 0.1
    evidence = posterior.evidence()
    assert abs(evidence.log_marginal_likelihood.item() + lost) < FOUR * evidence.standard_error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "antithetic"}, 'estimator must be "local", "flipout" or "weights", got \'antithetic\''),
        ({"num_samples": 0}, "num_samples must be a positive integer, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be positive, got -1.0"),
        ({"initial_scale": 0.0}, "initial_scale must be positive, got 0.0"),
        ({"schedule": "sawtooth"}, "sawtooth"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises((ValueError, pl.NotSupported), match=message):
        pl.BayesByBackprop(**settings)


def test_runs_of_different_rates_share_one_fit_many():
    regression = linear_regression(n=20)
    methods = [pl.BayesByBackprop(learning_rate=r, initial_scale=s) for r, s in ((0.01, 0.1), (0.03, 0.2))]
    settings = {"steps": 30, "batch_size": 20, "progress": False, "device": "cpu"}
    together = pl.fit_many(regression.model(), regression.data(), methods, **settings)
    for method, found in zip(methods, together, strict=True):
        alone = pl.fit(regression.model(), regression.data(), method, **settings)
        torch.testing.assert_close(vector_of(found.mean), vector_of(alone.mean), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(vector_of(found.scale), vector_of(alone.scale), rtol=1e-10, atol=1e-12)
