"""ADVI in use: what it says of itself, hyperparameters, the published step sizes, and errors that name the way out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.contract_cases import blobs, mlp
from tests.contract_cases import model as classifier
from tests.oracles import linear_regression, vector_of

import plausible as pl
from plausible.inference.variational import adaptive
from plausible.inference.variational.convergence import collapsed
from plausible.weights.rng import Keys, run_key

QUIET = {"progress": False, "device": "cpu"}
TRUTH = linear_regression(n=30, inputs=4, seed=3)


def fitted(method=None, steps=20, **settings):
    return pl.fit(TRUTH.model(**settings), TRUTH.data(), method or pl.ADVI(), steps=steps, **QUIET)


# --- hyperparameters ---


@pytest.mark.slow
def test_relevance_determination_finds_the_five_useless_inputs_of_friedman():
    """y = 10 sin(π x₁ x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + noise, of ten inputs (Friedman, 1991)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y + torch.randn(400, generator=generator)).unsqueeze(1)
    x, y = (x - 0.5) * 12**0.5, (y - y.mean()) / y.std()
    torch.manual_seed(0)
    prior = {
        "layers.0.weight": pl.priors.Hierarchical(hyperprior=pl.hyperpriors.HalfCauchy(), per="input"),
        "*": pl.priors.Normal(scale=1.0),
    }
    network = pl.networks.MLP(10, hidden=(20,), outputs=1, activation="tanh")
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2), prior)
    name = next(k for k in model.start if k.startswith("prior."))
    posterior = pl.fit(model, (x, y), pl.ADVI(learning_rate=0.02), steps=3000, batch_size=100, **QUIET)
    scales = model.constrain(posterior.mean)[name].flatten()
    assert len(scales) == 10
    assert float(scales[:5].min()) > 5 * float(scales[5:].max())


def test_unknown_noise_is_inferred_with_the_weights():
    """Its log scale's mean and deviation, known from a χ² with n − p degrees of freedom when the prior is weak."""
    truth = linear_regression(n=200, inputs=2, noise=0.5, seed=1)
    model = truth.model(likelihood=pl.likelihoods.Normal(scale=pl.hyperpriors.HalfNormal(scale=10.0)))
    method = pl.ADVI(family="full", learning_rate=0.1, estimator="sticking-the-landing")
    posterior = pl.fit(model, truth.data(), method, steps=800, batch_size=200, **QUIET)
    residual = truth.y - truth.design @ torch.linalg.lstsq(truth.design, truth.y).solution
    noise = math.sqrt(float(residual @ residual) / (200 - 3))
    deviation = float(posterior.covariance.diagonal()[-1].sqrt())
    assert list(model.start)[-1] == "likelihood.scale"
    assert deviation == pytest.approx(1 / math.sqrt(2 * 197), rel=0.05)
    assert abs(float(posterior.mean["likelihood.scale"]) - math.log(noise)) < 0.3 * deviation


def test_a_collapsed_prior_scale_is_named():
    model = TRUTH.model(prior=pl.priors.Normal(scale=pl.hyperpriors.HalfCauchy()))
    name = next(k for k in model.start if k.startswith("prior."))
    mean = {k: torch.zeros_like(v) for k, v in model.start.items()}
    narrow = {k: torch.full_like(v, 0.1) for k, v in model.start.items()}
    fallen = pl.posteriors.Diagonal(model, {**mean, name: mean[name] - 9.0}, narrow)
    assert list(collapsed(model, fallen)) == [name]
    wide = pl.posteriors.Diagonal(model, {**mean, name: mean[name] - 9.0}, {k: 3 + 0 * v for k, v in narrow.items()})
    assert not collapsed(model, wide) and not collapsed(model, pl.posteriors.Diagonal(model, mean, narrow))


# --- evidence and diagnostics ---


def test_the_evidence_has_a_standard_error_that_its_draws_show():
    """The bound of the same q from draws of its own, by the definition."""
    posterior = fitted(steps=200)
    evidence = posterior.evidence()
    draws = posterior.sample(4000, seed=5)
    log_q = posterior.log_prob(draws)
    x, y = TRUTH.data()
    predicted = x @ draws["weight"].squeeze(1).T + draws["bias"].T
    log_p = torch.distributions.Normal(predicted, TRUTH.noise).log_prob(y).sum(0)
    log_p = log_p + torch.distributions.Normal(0.0, 1.0).log_prob(vector_of(draws, 1)).sum(-1)
    gaps = log_p - log_q
    assert evidence.standard_error == pytest.approx(float(gaps.std()) / math.sqrt(256), rel=0.3)
    error = math.hypot(evidence.standard_error, float(gaps.std()) / math.sqrt(4000))
    assert abs(float(evidence.log_marginal_likelihood - gaps.mean())) < 4 * error


def test_batches_of_a_sweep_count_the_prior_once():
    whole = fitted(steps=0).evidence()
    few = pl.fit(TRUTH.model(), TRUTH.data(), pl.ADVI(), steps=0, batch_size=7, **QUIET).evidence()
    assert float(few.log_marginal_likelihood) == pytest.approx(float(whole.log_marginal_likelihood), rel=1e-12)


def test_a_tempered_model_and_a_flat_prior_have_no_evidence():
    tempered = pl.fit(classifier(temperature=0.5), blobs(), pl.ADVI(), steps=3, **QUIET)
    with pytest.raises(pl.NotSupported, match="tempered"):
        tempered.evidence()
    with pytest.raises(pl.NotSupported, match="flat"):
        fitted(steps=3, prior=pl.priors.Flat()).evidence()


@pytest.mark.parametrize("method", [pl.ADVI(), pl.BayesByBackprop()], ids=["ADVI", "BayesByBackprop"])
def test_a_scale_without_a_density_leaves_no_evidence_and_one_with_a_density_does(method):
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.zeros(20, 1)

    def answer(scale):
        model = pl.BayesianModel(torch.nn.Linear(1, 1), pl.likelihoods.Normal(scale=scale))
        return pl.fit(model, (x, y), method, steps=3, **QUIET)

    with pytest.raises(pl.NotSupported, match=r'likelihood.scale has the flat prior that "learn" means'):
        answer("learn").evidence()
    assert answer("learn").diagnostics().table["elbo"]["value"] < 0
    assert answer(pl.hyperpriors.HalfNormal()).evidence().kind == "lower bound"


def test_evidence_and_diagnostics_are_in_the_file(tmp_path):
    posterior = fitted(steps=30)
    posterior.save(tmp_path / "q.plausible")
    loaded = pl.load(tmp_path / "q.plausible", torch.nn.Linear(4, 1).double())
    assert loaded.evidence() == posterior.evidence()
    assert loaded.diagnostics() == posterior.diagnostics()


def test_a_network_that_vmap_cannot_run_takes_many_samples_one_by_one():
    class Branching(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if self.weight.sum() > -1e9 else x

    network = Branching(2, 3)
    twin = torch.nn.Linear(2, 3)
    twin.load_state_dict(network.state_dict())
    found = [pl.fit(classifier(n), blobs(), pl.ADVI(num_samples=4), steps=10, **QUIET) for n in (network, twin)]
    for k, v in found[0].mean.items():
        torch.testing.assert_close(v, found[1].mean[k], rtol=1e-4, atol=1e-5)


# --- the published step sizes ---


def test_the_step_sizes_are_the_published_sequence():
    """ρₖ = η k^(−½) / (1 + √sₖ), sₖ = 0.1 gₖ² + 0.9 sₖ₋₁ and s₁ = g₁², by a loop over numbers."""
    slopes = np.array([3.0, -1.0, 0.5, 2.0, -4.0])
    expected, square = 1.5, 0.0
    for k, g in enumerate(slopes, 1):
        square = g**2 if k == 1 else 0.1 * g**2 + 0.9 * square
        expected += 0.3 * k**-0.5 / (1 + math.sqrt(square)) * g
    moving = {"w": torch.tensor([1.5], dtype=torch.float64)}
    memory = adaptive.start(moving, 0.3, 0)
    for k, g in enumerate(slopes):
        adaptive.climb_(moving, memory, {"w": torch.tensor([g])}, torch.tensor(0.0), torch.tensor(k), 0)
    assert float(moving["w"]) == pytest.approx(expected, rel=1e-12)


def far(p):
    return -0.5 * ((p["w"] - 300.0) ** 2).sum()


def narrow_with_an_edge(p):
    inside = -0.5 * ((p["w"] - 0.03) / 0.01) ** 2
    return torch.where(p["w"].abs() < 5.0, inside, torch.full_like(inside, float("nan"))).sum()


@pytest.mark.parametrize("log_prob", [far, narrow_with_an_edge])
def test_the_search_picks_the_scale_whose_trial_has_the_highest_bound(log_prob):
    """Each trial played again by itself, with the noise of its own steps."""
    density = pl.LogDensity(log_prob, {"w": torch.zeros(1, dtype=torch.float64)}).bound(num_steps=250)
    method, key, length = pl.ADVI(optimizer="adaptive"), run_key(0), 10
    assert adaptive.trial_length(250) == length
    scores = []
    for trial, eta in enumerate(adaptive.CANDIDATES):
        state = method.init(density, density.init())
        moving = {"mean w": state["params"]["w"], "log_scale": state["spread"]["log_scale"]}
        memory, bounds = adaptive.start(moving, eta, 0), []
        for place in range(length):
            z = Keys(key, torch.tensor(trial * length + place)).normal((1, 1), torch.float64)
            _, elbo, slopes = method.slopes(density, state, None, z)
            bounds.append(float(elbo) if math.isfinite(elbo) else -math.inf)
            slopes = {k: v.nan_to_num(0.0, 0.0, 0.0) for k, v in slopes.items()}
            adaptive.climb_(moving, memory, slopes, elbo, torch.tensor(place), 0)
        scores.append(sum(bounds[length // 2 :]))
    state = method.init(density, density.init())
    for step in range(5 * length):
        state, shown = method.step(density, state, None, Keys(key, torch.tensor(step)))
        assert math.isfinite(shown["log_joint"])  # a trial that diverges does not stop the run
        if step in method.adapted_steps(250):
            state = method.adapt(density, state, step)
    assert float(state["memory"]["eta"]) == adaptive.CANDIDATES[int(np.argmax(scores))]
    assert float(state["params"]["w"]) == 0.0  # the winner begins anew from the start
    assert any(s == -math.inf for s in scores) == (log_prob is narrow_with_an_edge)


def test_a_trial_that_diverges_does_not_stop_the_run_but_the_run_itself_does():
    def cliff(p):
        return -0.5 * (p["w"] ** 2).sum() + torch.where(p["w"].abs() < 30.0, 0.0, float("nan")).sum()

    density = pl.LogDensity(cliff, {"w": torch.zeros(2)})
    assert pl.fit(density, None, pl.ADVI(optimizer="adaptive"), steps=60, **QUIET).diagnostics().messages
    with pytest.raises(FloatingPointError, match="learning rate"):
        pl.fit(density, None, pl.ADVI(optimizer="adaptive", learning_rate=1e3), steps=60, **QUIET)


# --- errors ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "kronecker"}, "family must be one of"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
        ({"estimator": "score"}, "estimator must be one of"),
        ({"rank": 0}, "rank must be a positive integer, got 0"),
        ({"num_samples": 1.5}, "num_samples must be a positive integer, got 1.5"),
        ({"learning_rate": -1.0}, "learning_rate must be positive and finite, got -1.0"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_value(settings, message):
    with pytest.raises((ValueError, pl.NotSupported), match=message):
        pl.ADVI(**settings)


def test_a_full_covariance_that_would_not_fit_is_refused_with_its_size():
    network = torch.nn.Linear(100, 600)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    with pytest.raises(pl.NotSupported, match=r"GiB for 60,600 unknowns; take family=\"low-rank\""):
        pl.fit(model, (torch.zeros(2, 100), torch.zeros(2, 600)), pl.ADVI(family="full"), steps=1, **QUIET)


def test_dtypes_are_kept_where_unknowns_differ():
    density = pl.LogDensity(
        lambda p: -0.5 * (p["a"] ** 2).sum() - 0.5 * (p["b"] ** 2).sum().float(),
        {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.float64)},
    )
    posterior = pl.fit(density, None, pl.ADVI(), steps=5, **QUIET)
    assert posterior.mean["a"].dtype == torch.float32 and posterior.mean["b"].dtype == torch.float64


def test_the_mean_of_a_network_moves_and_its_scales_are_of_the_size_of_its_layers():
    posterior = pl.fit(classifier(mlp()), blobs(), pl.ADVI(learning_rate=0.02), steps=30, batch_size=50, **QUIET)
    start = classifier(mlp()).start
    assert all(not torch.equal(v, start[k]) for k, v in posterior.mean.items())
    assert float(posterior.scale["2.weight"].mean()) < float(posterior.scale["2.bias"].mean())
