"""VOGN, OGN and IVON through `fit`: priors, temperature, densities, and what can go wrong."""

import contextlib

import pytest
import torch
from tests.contract_cases import blobs, mlp, seeded
from tests.inference.natural_gradient.test_updates import CENTRE, DELTA, NOISE, own_equation, regression
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient import draws
from plausible.inference.natural_gradient.answer import checked
from plausible.inference.natural_gradient.gaussian_prior import GaussianPrior

QUIET = {"progress": False, "device": "cpu"}
BOTH = [pl.VOGN(), pl.OGN(), pl.IVON()]
every_method = pytest.mark.parametrize("method", BOTH, ids=lambda m: type(m).__name__)


def linear(**settings):
    network = seeded(lambda: nn.Linear(3, 1, bias=False)).double()
    settings = {"prior": pl.priors.Normal(scale=DELTA**-0.5), **settings}
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=NOISE), **settings)


def data():
    x, y = regression()
    return x, y.unsqueeze(1)


def classify(prior=None, network=None):
    return pl.BayesianModel(network or mlp(), pl.likelihoods.Categorical(), prior or pl.priors.Normal(scale=1.0))


# --- truth ---


def test_vogn_by_fit_settles_at_its_own_equation():
    mean, variance, _ = own_equation(*regression(), tau=2.0)
    method = pl.VOGN(num_samples=8, tempering=2.0, learning_rate=0.03, curvature_decay=0.97)
    found = pl.fit(linear(), data(), method, steps=200, batch_size=40, **QUIET)
    sigma = variance.sqrt()
    # ĥ of a draw scatters by about its own size (few examples have most of it), and the memory is of some 250 draws.
    assert bool(((found.scale["weight"][0] / sigma - 1).abs() < 0.1).all())
    assert bool(((found.mean["weight"][0] - mean).abs() < 0.4 * sigma).all())


@pytest.mark.slow
def test_ivon_by_fit_settles_at_the_best_independent_normal():
    mean, _, best = own_equation(*regression(), tau=1.0)
    found = pl.fit(linear(), data(), pl.IVON(num_samples=16), steps=1500, batch_size=40, **QUIET)
    assert bool(((found.scale["weight"][0] ** 2 / best - 1).abs() < 0.06).all())
    assert bool(((found.mean["weight"][0] - mean).abs() < 0.2 * best.sqrt()).all())


@pytest.mark.slow
def test_ivon_finds_the_best_independent_normal_of_a_correlated_density():
    precision = torch.tensor([[4.0, 1.5], [1.5, 1.0]], dtype=torch.float64)
    centre = torch.tensor([1.0, -3.0], dtype=torch.float64)

    def log_prob(params):
        d = params["w"] - centre
        return -0.5 * d @ precision @ d

    target = pl.LogDensity(log_prob, {"w": torch.zeros(2, dtype=torch.float64)})
    found = pl.fit(target, None, pl.IVON(num_samples=8), steps=400, compile=False, **QUIET)
    assert bool(((found.scale["w"] ** 2 * precision.diagonal() - 1).abs() < 0.15).all())
    assert bool(((found.mean["w"] - centre).abs() < 0.3 * found.scale["w"]).all())


# --- the prior and the temperature ---


def test_yesterdays_posterior_gives_its_mean_and_its_precisions():
    model = linear()
    old = pl.posteriors.Diagonal(model, {"weight": CENTRE.unsqueeze(0)}, {"weight": torch.tensor([[0.1, 0.2, 0.5]])})
    prior = GaussianPrior.of(model.with_prior(old), model.start)
    torch.testing.assert_close(prior.precision["weight"], torch.tensor([[100.0, 25.0, 4.0]]))
    torch.testing.assert_close(
        prior.pull({"weight": 0 * CENTRE.unsqueeze(0)})["weight"][0, 1], torch.tensor(50.0).double()
    )


@every_method
def test_a_tight_posterior_as_the_prior_holds_the_weights_where_they_were(method):
    model = linear()
    there = {"weight": torch.tensor([[-3.0, 4.0, 2.0]], dtype=torch.float64)}
    old = pl.posteriors.Diagonal(model, there, {"weight": torch.full((1, 3), 1e-3, dtype=torch.float64)})
    found = pl.fit(model.with_prior(old), data(), method, steps=100, batch_size=40, init=old, compile=False, **QUIET)
    # The data pull by some 4 of its deviations, and add a hundredth to its precision.
    torch.testing.assert_close(found.mean["weight"], there["weight"], atol=0.02, rtol=0)
    torch.testing.assert_close(found.scale["weight"], old.scale["weight"], atol=0, rtol=0.1)


@every_method
def test_a_posterior_of_known_noise_is_a_prior_where_noise_is_learnt(method):
    old = pl.posteriors.Diagonal(linear(), linear().init(), {"weight": torch.full((1, 3), 1e-3, dtype=torch.float64)})
    model = pl.BayesianModel(linear().source, pl.likelihoods.Normal(scale="learn"), old)
    found = pl.fit(model, data(), method, steps=200, batch_size=40, compile=False, **QUIET)
    torch.testing.assert_close(found.mean["weight"], old.mean["weight"], atol=0.02, rtol=0)
    residual = data()[1] - data()[0] @ old.mean["weight"].T
    noise = model.constrain(found.mean)["likelihood.scale"]
    assert float(noise / residual.square().mean().sqrt()) == pytest.approx(1.0, abs=0.15)


def test_priors_by_pattern_and_by_fan_in_count_for_their_own_weights():
    prior = {
        "0.*": pl.priors.fan_in(pl.priors.Normal(scale=0.5)),
        "2.weight": pl.priors.Flat(),
        "*": pl.priors.Normal(2.0),
    }
    found = GaussianPrior.of(classify(prior), mlp().state_dict())
    assert found.precision == {"0.weight": 8.0, "0.bias": 4.0, "2.weight": 0.0, "2.bias": 0.25}
    assert found.unbelieved == ["2.weight"]


@every_method
@pytest.mark.parametrize(
    "prior", [pl.priors.Laplace(), pl.priors.Hierarchical(), pl.priors.Normal(pl.hyperpriors.HalfNormal())]
)
def test_a_prior_that_is_not_normal_is_refused_with_the_way_out(method, prior):
    with pytest.raises(pl.NotSupported, match=r"normal prior of known scale.*pl\.priors\.Normal.*pl\.ADVI"):
        pl.fit(classify(prior), blobs(), method, steps=2, **QUIET)


def test_a_correlated_posterior_as_the_prior_is_refused():
    model = linear()
    old = pl.posteriors.Full(model, model.init(), torch.eye(3, dtype=torch.float64))
    with pytest.raises(pl.NotSupported, match="Diagonal posterior as the prior, got Full"):
        pl.fit(model.with_prior(old), data(), pl.IVON(), steps=2, **QUIET)


@every_method
def test_a_noise_scale_is_learnt_beside_the_weights(method):
    model = linear()
    model = pl.BayesianModel(model.source, pl.likelihoods.Normal(scale="learn"), model.prior)
    found = pl.fit(model, data(), method, steps=200, batch_size=40, compile=False, **QUIET)
    residual = data()[1] - data()[0] @ found.mean["weight"].T
    scale = model.constrain(found.mean)["likelihood.scale"]
    assert float(scale / residual.std()) == pytest.approx(1.0, abs=0.15)
    assert float(found.scale["likelihood.scale"]) == pytest.approx((2 * 40) ** -0.5, rel=0.5)


@pytest.mark.parametrize(("tempering", "factor"), [(1.0, 1.0), (0.1, 1.0), (5.0, 1.0), (1.0, 5.0)])
def test_the_prior_of_a_noise_scale_counts_beside_the_likelihood_as_that_of_a_weight(tempering, factor):
    """One step for y ~ N(0, s²) with u = log s ~ N(0, 0.2²), where gᵢ = 1 − yᵢ² / s² and δ u is u / 0.2²."""
    y, u = 2 * torch.randn(20, 1, generator=torch.Generator().manual_seed(0)).double(), torch.tensor(0.7).double()
    noise = pl.likelihoods.Normal(scale=pl.hyperpriors.LogNormal(0.0, 0.2))
    model = pl.BayesianModel(nn.Linear(1, 1, bias=False).double(), noise)
    method = pl.VOGN(learning_rate=0.1, curvature_decay=0.9, tempering=tempering, augmentation_factor=factor)
    start = {"weight": torch.zeros(1, 1).double(), "likelihood.scale": u}
    found = pl.fit(model, (torch.ones_like(y), y), method, steps=1, batch_size=20, init=start, **QUIET)
    g = 1 - y.square() * (-2 * u).exp()
    step = (g.mean() + tempering / (20 * factor) * u / 0.2**2) / (g.square().mean() / tempering)
    torch.testing.assert_close(found.mean["likelihood.scale"], u - 0.1 * step, rtol=1e-12, atol=0.0)


def test_a_temperature_multiplies_variances_and_moves_no_mean():
    cold, warm = (pl.fit(linear(temperature=t), data(), pl.OGN(), steps=30, **QUIET) for t in (1.0, 4.0))
    torch.testing.assert_close(warm.mean["weight"], cold.mean["weight"])
    torch.testing.assert_close(warm.scale["weight"], 2 * cold.scale["weight"])


def test_augmentation_counts_as_more_data():
    plain, more = (
        pl.fit(linear(), data(), pl.VOGN(augmentation_factor=f, curvature_decay=0.9), steps=100, **QUIET)
        for f in (1.0, 9.0)
    )
    ratio = plain.scale["weight"] / more.scale["weight"]
    assert bool(((ratio > 2.3) & (ratio < 3.9)).all())


def test_a_run_of_vogn_forgets_its_initial_curvature_but_for_a_small_share():
    """A weight without curvature, so that what is left of the start is all there is: s₀ (1 − τ β₂)ᵀ, τ β₂ = 5 / T."""
    x, y = data()
    for tempering in (1.0, 0.5):
        method = pl.VOGN(initial_curvature=2.0, tempering=tempering)
        found = pl.fit(linear(), (0 * x, y), method, steps=200, batch_size=40, **QUIET)
        left = found.scale["weight"].pow(-2) - DELTA
        torch.testing.assert_close(left, torch.full_like(left, 40 * 2.0 * (1 - 5 / 200) ** 200), rtol=1e-6, atol=0)


def test_a_high_tempering_at_the_start_does_not_slow_vogns_forgetting():
    """τ is 4 at the first step and 1 at all others: the share that is left is (1 − 4 β₂) (1 − β₂)ᵀ⁻¹, with β₂ = 5 / T."""
    x, y = data()
    method = pl.VOGN(initial_curvature=2.0, tempering_start=4.0, tempering_warmup=1)
    found = pl.fit(linear(), (0 * x, y), method, steps=400, batch_size=40, **QUIET)
    left, share = found.scale["weight"].pow(-2) - DELTA, 5 / 400
    expected = torch.full_like(left, 40 * 2.0 * (1 - 4 * share) * (1 - share) ** 399)
    torch.testing.assert_close(left, expected, rtol=1e-6, atol=0)


def test_vogn_takes_its_start_from_the_first_batch_where_the_memory_is_given():
    x, y = data()
    method = pl.VOGN(curvature_decay=0.9)
    model = linear()
    found = pl.fit(model, (x, y), method, steps=1, batch_size=40, **QUIET)
    residual = y - x @ model.init()["weight"].T
    squares = (x**2 * residual**2).sum(0) / NOISE**4
    torch.testing.assert_close(found.scale["weight"][0].pow(-2), squares + DELTA, rtol=1e-6, atol=0)


def test_damping_bounds_how_wide_ogn_is():
    x, y = data()
    found = pl.fit(linear(), (0 * x, y), pl.OGN(damping=0.2), steps=20, batch_size=40, **QUIET)
    torch.testing.assert_close(
        found.scale["weight"].pow(-2), torch.full((1, 3), 40 * 0.2 + DELTA, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_tempering_warms_up_in_a_straight_line():
    method = pl.VOGN(tempering=1.0, tempering_start=0.2, tempering_warmup=10)
    found = [float(method._tempering(torch.tensor(step))) for step in (0, 5, 10, 500)]
    assert found == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_norms_may_go_without_a_prior():
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = classify({"1.*": pl.priors.Flat(), "*": pl.priors.Normal(1.0)}, network)
    for method in BOTH:
        found = pl.fit(model, blobs(), method, steps=30, batch_size=16, **QUIET)
        assert bool(torch.isfinite(found.predict(blobs()[0], num_samples=4).probs).all())


# --- what can go wrong ---


@every_method
@pytest.mark.parametrize("prior", [pl.priors.Normal(1.0), pl.priors.Flat()], ids=["normal", "flat"])
def test_dead_units_keep_a_finite_posterior(method, prior):
    network = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        network[0].bias[:3] = -1e4  # never on
    found = pl.fit(classify(prior, network), blobs(), method, steps=40, batch_size=50, **QUIET)
    assert all(bool(torch.isfinite(t).all()) for p in (found.mean, found.scale) for t in p.values())
    assert bool((found.scale["0.weight"][:3] <= 1.0 + 1e-5).all()) or isinstance(method, pl.IVON)


@every_method
def test_a_batch_with_nan_stops_the_run_and_says_when(method):
    x, y = blobs()
    x[7, 0] = float("nan")
    with pytest.raises((FloatingPointError, ValueError), match="finite|NaN|nan"):
        pl.fit(classify(), (x, y), method, steps=20, batch_size=16, **QUIET)


def test_a_posterior_that_is_not_finite_is_never_given():
    model = linear()
    broken = {"weight": torch.tensor([[1.0, float("nan"), 1.0]], dtype=torch.float64)}
    with pytest.raises(FloatingPointError, match=r"scale.*weight is not finite.*learning rate"):
        checked(pl.posteriors.Diagonal(model, model.init(), broken))


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN()], ids=["VOGN", "OGN"])
def test_a_curvature_past_the_largest_number_is_no_posterior_without_width(method):
    x, y = data()
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=1e-11))
    with pytest.raises(FloatingPointError, match=r"scale of weight is 0 .* torch.float32"):
        pl.fit(model, (x.float(), y.float()), method, steps=5, batch_size=20, **QUIET)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN()], ids=["VOGN", "OGN"])
def test_methods_that_need_examples_refuse_a_bare_density(method):
    target = pl.LogDensity(lambda p: -(p["w"] ** 2).sum(), {"w": torch.zeros(2)})
    with pytest.raises(pl.NotSupported, match="IVON and NaturalGradientVI"):
        pl.fit(target, None, method, steps=2, **QUIET)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: pl.VOGN(learning_rate=0.0), "learning_rate must be positive, got 0.0"),
        (lambda: pl.VOGN(momentum=1.0), r"momentum must lie in \[0, 1\), got 1.0"),
        (lambda: pl.OGN(curvature_decay=1.0), r"curvature_decay must lie in \[0, 1\), got 1.0"),
        (lambda: pl.VOGN(tempering=0.0), "tempering must be positive, got 0.0"),
        (lambda: pl.VOGN(tempering_warmup=5), "both tempering_start and tempering_warmup, got None and 5"),
        (lambda: pl.OGN(damping=-1.0), "damping must not be negative, got -1.0"),
        (lambda: pl.VOGN(num_parts=0), "num_parts must be a positive integer, got 0"),
        (lambda: pl.IVON(num_samples=0), "num_samples must be a positive integer, got 0"),
        (lambda: pl.IVON(clip_radius=0.0), "clip_radius must be positive, got 0.0"),
        (lambda: pl.IVON(initial_curvature=0.0), "initial_curvature must be positive, got 0.0"),
        (lambda: pl.VOGN(initial_curvature=0.0), "initial_curvature must be positive, got 0.0"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_tempering_that_would_make_the_curvature_negative_is_refused():
    with pytest.raises(ValueError, match="tempering 3.0 must be at most"):
        pl.fit(linear(), data(), pl.VOGN(tempering=3.0, curvature_decay=0.5), steps=2, **QUIET)


# --- draws together ---


@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize(
    "method", [pl.VOGN(num_samples=4), pl.IVON(num_samples=4, clip_radius=0.5)], ids=["VOGN", "IVON"]
)
def test_draws_that_share_a_pass_give_what_draws_one_by_one_give(method, modes, monkeypatch):
    def run():
        return pl.fit(
            classify(network=mlp(torch.float64)), blobs(dtype=torch.float64), method, steps=6, batch_size=16,
            num_modes=modes, vectorise=True, compile=False, **QUIET,
        )  # fmt: skip

    shared = run()
    monkeypatch.setattr(draws, "TOGETHER_FROM", 100)
    for a, b in zip(shared.components, run().components, strict=True):
        for k in a.mean:
            torch.testing.assert_close(a.mean[k], b.mean[k], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(a.scale[k], b.scale[k], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", [pl.VOGN(num_samples=3), pl.IVON(num_samples=3)], ids=["VOGN", "IVON"])
def test_a_draw_in_a_branch_of_a_graph_has_the_dropout_masks_of_its_turn(method, monkeypatch):
    """With streams that do nothing, so that only the order is left of the branches."""

    class Nowhere:
        def wait_stream(self, other):
            pass

    def run():
        network = seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)))
        return pl.fit(classify(network=network), blobs(), method, steps=3, batch_size=16, compile=False, **QUIET)

    in_turn, forked = run(), []
    monkeypatch.setattr(torch.cuda, "current_stream", Nowhere)
    monkeypatch.setattr(torch.cuda, "Stream", Nowhere)
    monkeypatch.setattr(torch.cuda, "stream", lambda branch: contextlib.nullcontext())
    monkeypatch.setattr(draws, "_branches", lambda model, points: forked.append(1) or True)
    side_by_side = run()
    assert forked
    assert all(torch.equal(side_by_side.mean[k], w) for k, w in in_turn.mean.items())


@pytest.mark.parametrize("name", ["VOGN", "IVON"])
def test_runs_that_differ_in_numbers_go_together(name):
    methods = [getattr(pl, name)(learning_rate=r, momentum=m) for r, m in ((0.01, 0.9), (0.03, 0.5))]
    settings = {"steps": 12, "batch_size": 16, "compile": False, **QUIET}
    together = pl.fit_many(classify(), blobs(), methods, **settings)
    for method, found in zip(methods, together, strict=True):
        alone = pl.fit(classify(), blobs(), method, **settings)
        for k in alone.mean:
            torch.testing.assert_close(found.mean[k], alone.mean[k], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.scale[k], alone.scale[k], rtol=1e-4, atol=1e-6)
