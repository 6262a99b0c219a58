"""Priors with unknown scales inside a model: names, natural values, densities and draws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.core.unknown_scales import (
    PRIORS,
    Hierarchical,
    Horseshoe,
    InverseGamma,
    LogNormal,
    data,
    model_with,
    scattered,
    small_network,
)
from torch import nn
from torch.func import jacrev
from torch.nn.utils import parameters_to_vector

import plausible as pl

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
