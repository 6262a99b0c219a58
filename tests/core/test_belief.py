"""Priors with unknown scales inside a model: names, natural values, densities, draws, and everything that runs the network."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import nn
from torch.func import jacrev
from torch.nn.utils import parameters_to_vector

import plausible as pl
from plausible.core.diagnostics import ess
from plausible.core.errors import NotSupported
from plausible.weights.algebra import from_vector, to_vector

Hierarchical, Horseshoe = pl.priors.Hierarchical, pl.priors.Horseshoe
HalfNormal, InverseGamma, LogNormal = pl.hyperpriors.HalfNormal, pl.hyperpriors.InverseGamma, pl.hyperpriors.LogNormal
PRIORS = {
    "layer": Hierarchical(),
    "network-laplace": Hierarchical(family=pl.priors.Laplace, hyperprior=InverseGamma(2.0, 0.5), per="network"),
    "unit-student": Hierarchical(family=pl.priors.StudentT(df=3.0), hyperprior=LogNormal(-1.0, 0.5), per="unit"),
    "input-cauchy": Hierarchical(family=pl.priors.Cauchy, hyperprior=HalfNormal(2.0), per="input"),
    "fan-in": Hierarchical(family=pl.priors.fan_in(pl.priors.Normal())),
    "horseshoe": Horseshoe(global_scale=0.3),
    "patterns": {"*.weight": Hierarchical(per="input"), "*": pl.priors.Normal(2.0)},
}


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def data(n=9):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, generator=rng).double(), torch.randn(n, 1, generator=rng).double()


def model_with(prior, temperature=1.0, network=None, noise=0.5):
    return pl.BayesianModel(
        network or small_network(), pl.likelihoods.Normal(scale=noise), prior=prior, temperature=temperature
    )


def scattered(model, seed=3):
    rng = torch.Generator().manual_seed(seed)
    return {k: 0.5 * torch.randn(v.shape, generator=rng, dtype=v.dtype) for k, v in model.start.items()}


# --- names and natural values ---


@pytest.mark.parametrize(
    ("per", "expected"),
    [
        ("network", {"prior.scale": ()}),
        ("layer", {"prior.0.scale": (), "prior.2.scale": ()}),
        ("unit", {"prior.0.scale": (2, 1), "prior.2.scale": (1, 1)}),
        (
            "input",
            {"prior.0.scale": (1, 3), "prior.0.bias.scale": (), "prior.2.scale": (1, 2), "prior.2.bias.scale": ()},
        ),
    ],
)
def test_scales_are_shared_by_layer_network_unit_or_input(per, expected):
    start = model_with(Hierarchical(per=per)).start
    assert {k: tuple(v.shape) for k, v in start.items() if k.startswith("prior.")} == expected


def test_convolutions_have_a_scale_per_filter_or_per_channel_and_embeddings_per_token():
    network = nn.ModuleDict(
        {"conv": nn.Conv2d(3, 5, 2), "up": nn.ConvTranspose2d(5, 4, 2), "words": nn.Embedding(7, 6)}
    )

    def shapes(per):
        model = pl.BayesianModel(network, pl.likelihoods.Normal(), prior=Hierarchical(per=per))
        return {k: tuple(v.shape) for k, v in model.start.items() if k.startswith("prior.") and "bias" not in k}

    assert shapes("unit") == {
        "prior.conv.scale": (5, 1, 1, 1), "prior.up.scale": (1, 4, 1, 1), "prior.words.scale": (1, 6),
    }  # fmt: skip
    assert shapes("input") == {
        "prior.conv.scale": (1, 3, 1, 1), "prior.up.scale": (5, 1, 1, 1), "prior.words.scale": (7, 1),
    }  # fmt: skip


def test_weights_of_one_module_with_several_widths_do_not_share_a_scale_per_unit():
    network = nn.MultiheadAttention(4, 2)  # in_proj is three times as wide as out_proj's own module
    model = pl.BayesianModel(network, pl.likelihoods.Normal(), prior=Hierarchical(per="unit"))
    natural = model.constrain(model.start)
    assert natural["in_proj_weight"].shape == (12, 4)
    assert model.start["prior.scale"].shape == (12, 1) and model.start["prior.out_proj.scale"].shape == (4, 1)


@pytest.mark.parametrize("inputs", [4, 3])
def test_a_recurrent_layers_inputs_and_states_have_relevances_of_their_own(inputs):
    model = pl.BayesianModel(nn.GRU(inputs, 4, bias=False), pl.likelihoods.Normal(), prior=Hierarchical(per="input"))
    shapes = {k: tuple(v.shape) for k, v in model.start.items() if k.startswith("prior.")}
    assert shapes == {"prior.scale": (1, inputs), "prior.weight_hh_l0.scale": (1, 4)}


@pytest.mark.parametrize("name", PRIORS)
def test_the_network_starts_with_its_own_weights_whatever_the_scales(name):
    model = model_with(PRIORS[name])
    own = dict(small_network().named_parameters())
    natural = model.constrain(model.start)
    for k, w in own.items():
        torch.testing.assert_close(natural[k], w.detach())
    x = data()[0]
    torch.testing.assert_close(model.outputs(model.start, x), small_network()(x).detach())


@pytest.mark.parametrize("name", PRIORS)
def test_unconstrain_is_the_inverse_of_constrain_also_for_stacked_draws(name):
    model = model_with(PRIORS[name])
    draws = model.sample_prior(5, seed=1)
    natural = model.constrain(draws)
    back = model.unconstrain(natural)
    for k, v in draws.items():
        torch.testing.assert_close(back[k], v)
        one = model.constrain({n: d[2] for n, d in draws.items()})[k]
        torch.testing.assert_close(natural[k][2], one)


def test_a_reset_reinitialises_natural_weights():
    model, plain = model_with(Hierarchical(hyperprior=LogNormal(1.0, 1.0))), model_with(pl.priors.Normal())
    natural, expected = model.constrain(model.init(7)), plain.init(7)
    for k in expected:
        torch.testing.assert_close(natural[k], expected[k])
    assert float(natural["prior.0.scale"]) == pytest.approx(math.e)


def test_natural_weights_without_their_scale_are_refused():
    model = model_with(Hierarchical())
    with pytest.raises(ValueError, match=r"0.weight is prior.0.scale times what params hold"):
        model.constrain({"0.weight": model.start["0.weight"]})


# --- densities ---


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.0])
@pytest.mark.parametrize("name", PRIORS)
def test_the_log_joint_is_the_tempered_density_of_natural_values_and_the_jacobian_of_constrain(name, temperature):
    model = model_with(PRIORS[name], temperature)
    params, batch = scattered(model), data()
    sizes = {k: v.numel() for k, v in params.items()}

    def flat_natural(vector):
        parts = vector.split(list(sizes.values()))
        natural = model.constrain({k: p.reshape(params[k].shape) for k, p in zip(sizes, parts, strict=True)})
        return parameters_to_vector([natural[k] for k in sizes])

    jacobian = jacrev(flat_natural)(parameters_to_vector([params[k] for k in sizes]))
    log_determinant = torch.linalg.slogdet(jacobian).logabsdet
    natural = model.constrain(params)
    likelihood = torch.distributions.Normal(model.outputs(params, batch[0]), 0.5).log_prob(batch[1]).sum()
    expected = (likelihood + model.log_prior(params)) / temperature + log_determinant
    assert float(model.log_jacobian(params)) == pytest.approx(float(log_determinant), abs=1e-10)
    assert float(model.log_joint(params, batch, num_data=9)) == pytest.approx(float(expected), abs=1e-9)
    value, slopes = model.bound(num_data=9).slope(params, batch)
    assert float(value) == pytest.approx(float(expected), abs=1e-9)
    step = 1e-5
    for k in (k for k in params if k.startswith("prior.")):
        moved = [{**params, k: params[k] + s * step} for s in (1, -1)]
        up, down = (model.log_joint(p, batch, num_data=9) for p in moved)
        assert float(slopes[k].sum()) == pytest.approx(float(up - down) / (2 * step), rel=1e-5, abs=1e-6)
    assert natural.keys() == params.keys()


@pytest.mark.parametrize(
    ("family", "law"),
    [
        (pl.priors.Normal, stats.norm),
        (pl.priors.Laplace, stats.laplace),
        (pl.priors.Cauchy, stats.cauchy),
        (pl.priors.StudentT, stats.t(df=5)),
    ],
)
def test_the_log_prior_is_scipys_density_of_natural_weights_given_natural_scales(family, law):
    model = model_with(Hierarchical(family=family, hyperprior=InverseGamma(2.0, 0.7), per="unit"))
    params = scattered(model)
    natural = {k: v.numpy() for k, v in model.constrain(params).items()}
    expected = 0.0
    for layer in ("0", "2"):
        scale = natural[f"prior.{layer}.scale"]
        for w, s in ((natural[f"{layer}.weight"], scale), (natural[f"{layer}.bias"], scale[:, 0])):
            expected += (law.logpdf(w / s) - np.log(s)).sum()
        expected += (stats.invgamma(2.0, scale=0.7).logpdf(scale**2) + np.log(2 * scale)).sum()
    assert float(model.log_prior(params)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["layer", "network-laplace", "unit-student", "input-cauchy", "fan-in"])
def test_centred_and_non_centred_models_have_one_density_of_natural_values(name):
    import dataclasses

    prior = PRIORS[name]
    model, centred = model_with(prior, 0.7), model_with(dataclasses.replace(prior, centred=True), 0.7)
    params = scattered(model)
    natural = model.constrain(params)
    theirs = centred.unconstrain(natural)
    assert torch.equal(theirs["0.weight"], natural["0.weight"])
    assert float(centred.log_prior(theirs)) == pytest.approx(float(model.log_prior(params)), abs=1e-10)
    # The density of z is that of w times |dw/dz|, which is not tempered.
    scales = model.log_jacobian(params) - centred.log_jacobian(theirs)
    ours, other = (m.log_joint(p, data(), num_data=9) for m, p in ((model, params), (centred, theirs)))
    assert float(ours) == pytest.approx(float(other + scales), abs=1e-9)


def test_a_number_for_a_hyperprior_is_the_plain_family():
    model = model_with(Hierarchical(family=pl.priors.Laplace, hyperprior=0.4, per="unit"))
    plain = model_with(pl.priors.Laplace(scale=0.4))
    params = scattered(plain)
    assert model.start.keys() == plain.start.keys()
    assert float(model.log_prior(params)) == pytest.approx(float(plain.log_prior(params)), abs=1e-12)
    wide = model_with(Hierarchical(family=pl.priors.fan_in(pl.priors.Normal(2.0)), hyperprior=3.0))
    assert float(wide.log_prior(params)) == float(model_with(pl.priors.fan_in(pl.priors.Normal(6.0))).log_prior(params))


# --- draws ---


def test_weights_drawn_through_a_hierarchy_have_their_marginal_law():
    """A normal whose variance is inverse-gamma is a Student t with twice its concentration for degrees of freedom."""
    prior = Hierarchical(hyperprior=InverseGamma(1.5, 0.8), per="layer")
    draws = model_with(prior).constrain(model_with(prior).sample_prior(4000, seed=2))
    for name in ("0.weight", "2.bias"):
        one = draws[name].flatten(1)[:, 0]
        assert stats.kstest(one.numpy(), stats.t(df=3.0, scale=math.sqrt(0.8 / 1.5)).cdf).pvalue > 1e-3
    squared = stats.kstest((draws["prior.0.scale"] ** 2).numpy(), stats.invgamma(1.5, scale=0.8).cdf)
    assert squared.pvalue > 1e-3
    # Weights of one layer share their scale; those of two layers do not.
    size = {k: draws[k].flatten(1)[:, 0].abs().log() for k in ("0.weight", "0.bias", "2.weight")}
    assert np.corrcoef(size["0.weight"], size["0.bias"])[0, 1] > 0.1
    assert abs(np.corrcoef(size["0.weight"], size["2.weight"])[0, 1]) < 0.07


def test_horseshoe_draws_have_the_law_of_a_product():
    model = model_with(Horseshoe(global_scale=0.2))
    draws = model.constrain(model.sample_prior(4000, seed=5))
    one = draws["0.weight"][:, 1, 2]
    rng = np.random.default_rng(0)
    cauchy = np.abs(rng.standard_cauchy((2, 200_000)))
    reference = 0.2 * cauchy[0] * cauchy[1] * rng.standard_normal(200_000)
    assert stats.ks_2samp(one.numpy(), reference).pvalue > 1e-3
    assert stats.kstest(draws["prior.scale"].numpy(), stats.halfcauchy(scale=0.2).cdf).pvalue > 1e-3


def test_a_prior_predictive_goes_through_the_scales():
    tight, wide = (model_with(Hierarchical(hyperprior=LogNormal(loc, 0.1))) for loc in (-4.0, 1.0))
    x = data()[0]
    assert float(tight.prior_predictive(x, 64).outputs.std()) < 0.05 < float(wide.prior_predictive(x, 64).outputs.std())


# --- what runs the network ---


def linear_problem(n=12, k=4):
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(n, k, generator=rng).double()
    y = x @ torch.randn(k, 1, generator=rng).double() * 0.7 + 0.4 * torch.randn(n, 1, generator=rng).double()
    torch.manual_seed(0)
    return nn.Linear(k, 1, bias=False).double(), x, y


@pytest.mark.slow
def test_hmc_finds_the_posterior_of_a_scale_that_quadrature_finds():
    network, x, y = linear_problem()
    model = model_with(Hierarchical(hyperprior=pl.hyperpriors.HalfCauchy(), per="network"), network=network, noise=0.4)
    posterior = pl.fit(model, (x, y), pl.HMC(trajectory_length=1.5), steps=1200, num_modes=4, progress=False)
    logs = torch.stack([c.draws["prior.scale"] for c in posterior.components])

    def joint(u):
        s = math.exp(u)
        law = stats.multivariate_normal(np.zeros(12), s**2 * (x @ x.T).numpy() + 0.16 * np.eye(12))
        return np.exp(law.logpdf(y.numpy()[:, 0]) + 30) * stats.halfcauchy.pdf(s) * s

    total, mean, square = (integrate.quad(lambda u, p=p: u**p * joint(u), -8, 8, limit=200)[0] for p in range(3))
    mean, deviation = mean / total, math.sqrt(square / total - (mean / total) ** 2)
    effective = float(ess(logs))
    assert effective > 150
    error = deviation / math.sqrt(effective)
    assert abs(float(logs.mean()) - mean) < 4 * error
    assert abs(float(logs.std()) / deviation - 1) < 4 / math.sqrt(effective)
    weights = torch.cat([c.model.constrain(c.draws)["weight"] for c in posterior.components])
    torch.testing.assert_close(
        posterior.predict(x, num_samples=4096).mean, (weights @ x.T).mean(0).T, rtol=0.05, atol=0.02
    )


def highest(model, batch):
    start = model.init()

    def downhill(vector):
        value, slope = model.slope(from_vector(torch.tensor(vector), start), batch)
        return -float(value), -to_vector(slope).numpy()

    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9}
    best = optimize.minimize(downhill, to_vector(start).numpy(), jac=True, method="L-BFGS-B", options=options)
    return from_vector(torch.tensor(best.x), start)


def test_point_methods_climb_the_density_of_natural_weights():
    network, x, y = linear_problem()
    model = model_with(Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per="network"), network=network, noise=0.4)
    seen = []
    method = pl.MAP(learning_rate=1e-6)
    posterior = pl.fit(model, (x, y), method, steps=1, batch_size=12, progress=False, callbacks=[seen.append])
    start = model.init()
    expected = model.log_joint(start, (x, y), num_data=12) - 4 * start["prior.scale"]  # less log |∂w / ∂z|
    assert float(seen[0]["log_joint"]) == pytest.approx(float(expected), abs=1e-9)
    assert posterior.model.seeks_mode is False


@pytest.mark.parametrize("per", ["network", "unit", "input"])
def test_the_highest_point_does_not_depend_on_how_the_model_is_written(per):
    network, x, y = linear_problem()
    found = []
    for centred in (False, True):
        prior = Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per=per, centred=centred)
        model = model_with(prior, network=network, noise=0.4)
        found.append(model.constrain(highest(model.bound(num_data=12, seeks_mode=True), (x, y))))
    for k in found[0]:
        torch.testing.assert_close(found[0][k], found[1][k], rtol=1e-4, atol=1e-5)
    if per == "network":  # d/du of −k u − Σw²/2s² − 2a u − b/s² is zero there, with u = log s
        squares = float((found[0]["weight"] ** 2).sum())
        assert float(found[0]["prior.scale"]) ** 2 == pytest.approx((squares + 1.0) / (4 + 4), rel=1e-4)


@pytest.mark.parametrize("structure", ["full", "diagonal", "low-rank"])
def test_laplace_of_a_non_centred_model_is_the_exact_posterior_at_the_scale_found(structure):
    network, x, y = linear_problem()
    prior = Hierarchical(hyperprior=InverseGamma(2.0, 0.5), per="input")
    model = model_with(prior, network=network, noise=0.4)
    method = pl.Laplace(structure=structure, rank=4, base=pl.MAP(learning_rate=0.05))
    posterior = pl.fit(model, (x, y), method, steps=30, batch_size=12, progress=False)
    natural = posterior.model.constrain(posterior.sample(50_000, seed=0))
    scale = natural["prior.scale"]
    assert torch.equal(scale[0], scale[-1])
    precision = x.T @ x / 0.16 + torch.diag(scale[0, 0] ** -2)
    covariance = torch.linalg.inv(precision) if structure != "diagonal" else torch.diag(1 / precision.diagonal())
    sample = natural["weight"][:, 0].T.cov()
    torch.testing.assert_close(sample, covariance, rtol=0.05, atol=0.05 * float(covariance.abs().max()))
    spread = posterior.predict(x, num_samples=20_000).outputs.var(0)[:, 0]
    torch.testing.assert_close(spread, (x @ covariance * x).sum(1), rtol=0.06, atol=1e-4)
    if structure == "full":
        law = stats.multivariate_normal(
            np.zeros(12), ((x * scale[0, 0] ** 2) @ x.T + 0.16 * torch.eye(12).double()).numpy()
        )
        value = float(posterior.evidence().log_marginal_likelihood)
        assert value == pytest.approx(law.logpdf(y[:, 0].numpy()), abs=1e-3)


def test_kronecker_factors_of_products_are_refused_with_the_way_out():
    model = model_with(Hierarchical(hyperprior=InverseGamma()))
    with pytest.raises(NotSupported, match="centred=True"):
        pl.fit(model, data(), pl.Laplace(), steps=2, progress=False)


def test_kronecker_factors_of_a_centred_hierarchy_are_there():
    model = model_with(Hierarchical(hyperprior=InverseGamma(), centred=True))
    posterior = pl.fit(model, data(), pl.Laplace(), steps=50, progress=False)
    assert bool(posterior.predict(data()[0]).variance.isfinite().all())


def test_a_linearised_prediction_varies_scales_and_weights_together():
    model = model_with(Hierarchical(per="unit"))
    mean = scattered(model)
    scale = {k: torch.full_like(v, 0.01) for k, v in mean.items()}
    posterior = pl.posteriors.Diagonal(model, mean, scale)
    x = data(3)[0]
    jacobians = jacrev(lambda p: model.outputs(p, x))(mean)
    expected = sum((0.01 * jacobians[k].flatten(2)).square().sum(-1) for k in mean)
    found = posterior.predict(x, num_samples=20_000, linearised=True).outputs.var(0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.0)


def test_norm_statistics_are_those_of_natural_weights():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    model = model_with(Hierarchical(hyperprior=InverseGamma(3.0, 0.1)), network=network)
    x, y = data(64)
    posterior = pl.fit(model, (x, y), pl.MAP(learning_rate=0.01), steps=20, batch_size=64, progress=False)
    natural = model.constrain(posterior.mean)
    expected = (x @ natural["0.weight"].T + natural["0.bias"]).mean(0)
    torch.testing.assert_close(posterior.bank["1.running_mean"][0], expected)


@pytest.mark.parametrize("name", PRIORS)
def test_a_saved_posterior_predicts_the_same_after_loading(name, tmp_path):
    model = model_with(PRIORS[name])
    posterior = pl.fit(model, data(), pl.HMC(trajectory_length=0.1), steps=10, progress=False)
    posterior.save(tmp_path / "posterior")
    loaded = pl.load(tmp_path / "posterior", small_network())
    x = data()[0]
    assert torch.equal(loaded.predict(x).outputs, posterior.predict(x).outputs)
    assert loaded.model.prior == posterior.model.prior


@pytest.mark.parametrize("prior", [Hierarchical(), Hierarchical(centred=True), Horseshoe()])
def test_point_methods_refuse_hyperpriors_that_do_not_vanish_at_zero(prior):
    with pytest.raises(NotSupported, match="InverseGamma"):
        pl.fit(model_with(prior), data(), pl.MAP(), steps=2, progress=False)


@pytest.mark.slow
def test_relevance_determination_finds_the_useless_inputs_of_friedmans_function():
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_samples=150, n_features=10, noise=0.5, random_state=0)  # inputs 5 to 9 do not count
    x, y = torch.tensor(x * 2 - 1), torch.tensor((y - y.mean()) / y.std()).unsqueeze(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    prior = {"0.weight": Hierarchical(per="input"), "*": pl.priors.Normal(1.0)}
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.15), prior=prior)
    posterior = pl.fit(model, (x, y), pl.HMC(trajectory_length=0.5), steps=400, progress=False)
    logs = model.constrain(posterior.draws)["prior.0.weight.0.scale"].log().mean(0)[0]
    useful, useless = logs[:5], logs[5:]
    assert float((useful.mean() - useless.mean()).exp()) > 5, logs.exp()
    assert float(useful.min()) > float(useless.max()), logs.exp()
