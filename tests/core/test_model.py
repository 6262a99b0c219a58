"""One log joint on one scale: minibatches, temperature, Jacobians, tied and fixed weights, and its slope."""

import math

import pytest
import torch
from scipy import integrate
from tests.core.small_regression import N, data, network
from tests.oracles import vector_of
from torch import nn
from torch.distributions import Normal

import plausible as pl


def gradients(model, params, batch, num_data):
    leaves = {k: p.detach().clone().requires_grad_() for k, p in params.items()}
    value = model.log_joint(leaves, batch, num_data=num_data)
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return value.detach(), dict(zip(leaves, found, strict=True))


# --- the one scale ---


@pytest.mark.parametrize("scale", [0.5, "learn"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 23])
def test_gradients_over_all_minibatches_average_to_the_gradient_of_all_data(batch_size, scale):
    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale=scale), temperature=0.7)
    params, (x, y) = model.init(3), data()
    whole_value, whole = gradients(model, params, (x, y), N)
    value, average = 0.0, {k: torch.zeros_like(p) for k, p in params.items()}
    for rows in torch.randperm(N, generator=torch.Generator().manual_seed(1)).split(batch_size):  # the last is ragged
        part, slopes = gradients(model, params, (x[rows], y[rows]), N)
        value = value + part * len(rows) / N
        average = {k: a + slopes[k] * len(rows) / N for k, a in average.items()}
    torch.testing.assert_close(value, whole_value, rtol=1e-10, atol=1e-10)
    for k in params:
        torch.testing.assert_close(average[k], whole[k], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 23])
def test_the_loops_own_batches_of_an_epoch_average_to_the_gradient_of_all_data(batch_size):
    """Every example is met once an epoch, and a ragged last batch is filled up with examples of weight zero."""
    from plausible.core.data import make_source

    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale=0.5))
    params, (x, y) = model.init(3), data()
    source = make_source(model, (x, y), batch_size=batch_size, seed=5, device=torch.device("cpu"))
    bound = model.bound(num_data=source.num_data)
    _, whole = gradients(model, params, (x, y), N)
    real = [int((source.batch(s)[2] > 0).sum()) for s in range(source.steps_per_epoch)]
    assert sum(real) == N
    assert all(source.batch(s)[2].sum().item() == pytest.approx(N) for s in range(source.steps_per_epoch))
    average = {k: torch.zeros_like(p) for k, p in params.items()}
    for step, count in enumerate(real):
        _, slopes = bound.slope(params, source.batch(step))
        average = {k: a + slopes[k] * count / N for k, a in average.items()}
    for k in params:
        torch.testing.assert_close(average[k], whole[k], rtol=1e-10, atol=1e-10)


def test_the_loops_batches_of_weighted_examples_are_unbiased():
    from plausible.core.data import make_source

    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale=0.5))
    params, (x, y) = model.init(3), data(20)
    weights = torch.rand(20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    source = make_source(model, (x, y, weights), batch_size=4, seed=5, device=torch.device("cpu"))
    bound = model.bound(num_data=source.num_data)
    _, whole = gradients(model, params, (x, y, weights), weights.sum().item())
    slopes = [bound.slope(params, source.batch(s))[1] for s in range(5)]
    for k in params:
        torch.testing.assert_close(sum(s[k] for s in slopes) / 5, whole[k], rtol=1e-10, atol=1e-10)


def test_log_joint_is_its_formula():
    model = pl.BayesianModel(
        network(), pl.likelihoods.Normal(scale=0.5), prior=pl.priors.Normal(scale=2.0), temperature=0.3
    )
    params, (x, y) = model.init(), data()
    net = network()
    likelihood = Normal(net(x), 0.5).log_prob(y).sum().detach()
    prior = sum(Normal(0.0, 2.0).log_prob(p).sum() for p in net.parameters()).detach()
    torch.testing.assert_close(model.log_likelihood(params, (x, y)), likelihood)
    torch.testing.assert_close(model.log_likelihoods(params, (x, y)), Normal(net(x), 0.5).log_prob(y).sum(1).detach())
    torch.testing.assert_close(model.log_prior(params), prior)
    torch.testing.assert_close(model.log_joint(params, (x, y), num_data=N), (likelihood + prior) / 0.3)
    torch.testing.assert_close(model.log_joint(params, (x, y), num_data=100), (likelihood * 100 / N + prior) / 0.3)


def test_weights_multiply_log_likelihoods_and_count_as_examples():
    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale=0.5))
    params, (x, y) = model.init(), data()
    weights = torch.arange(N).double()
    each = model.log_likelihoods(params, (x, y))
    torch.testing.assert_close(model.log_likelihoods(params, (x, y, weights)), weights * each)
    expected = (weights * each).sum() * (50 / weights.sum()) + model.log_prior(params)
    torch.testing.assert_close(model.log_joint(params, (x, y, weights), num_data=50), expected)


def test_without_n_there_is_no_whole_data_scale():
    model = pl.BayesianModel(network(), pl.likelihoods.Normal())
    for function in (model.log_joint, model.slope):
        with pytest.raises(ValueError, match="num_data"):
            function(model.init(), data())


# --- unknown scales and their Jacobians ---


@pytest.mark.parametrize(
    "hyperprior",
    [
        pl.hyperpriors.HalfNormal(0.7),
        pl.hyperpriors.HalfCauchy(),
        pl.hyperpriors.LogNormal(0.3, 0.8),
        pl.hyperpriors.InverseGamma(2.0, 1.5),
    ],
)
def test_the_density_of_the_unconstrained_scale_integrates_to_one(hyperprior):
    net = nn.Linear(1, 1, bias=False).double()
    model = pl.BayesianModel(net, pl.likelihoods.Normal(scale=hyperprior))
    prior_of_weight = Normal(0.0, 1.0).log_prob(net.weight.detach()).sum()

    def density(unconstrained):
        params = {**model.init(), "likelihood.scale": torch.tensor(unconstrained).double()}
        return (model.log_prior(params) + model.log_jacobian(params) - prior_of_weight).exp().item()

    total, _ = integrate.quad(density, -25, 25, limit=400, points=[-2, 0, 2])
    assert total == pytest.approx(1.0, abs=1e-6)


def test_log_joint_contains_the_jacobian_and_temperature_does_not_touch_it():
    likelihood = pl.likelihoods.Normal(scale=pl.hyperpriors.HalfCauchy())
    params = {**pl.BayesianModel(network(), likelihood).init(), "likelihood.scale": torch.tensor(-0.4).double()}
    for temperature in (1.0, 0.25):
        model = pl.BayesianModel(network(), likelihood, temperature=temperature)
        natural = model.constrain(params)["likelihood.scale"]
        assert natural.item() == pytest.approx(math.exp(-0.4))
        rest = (model.log_likelihood(params, data()) + model.log_prior(params)) / temperature
        # d exp(u) / du = exp(u), whose log is u itself.
        torch.testing.assert_close(model.log_joint(params, data(), num_data=N) - rest, torch.tensor(-0.4).double())


def test_to_learn_a_scale_is_to_be_flat_on_its_logarithm():
    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale="learn"))
    at = lambda u: {**model.init(), "likelihood.scale": torch.tensor(u).double()}  # noqa: E731
    rest = [model.log_joint(at(u), data(), num_data=N) - model.log_likelihood(at(u), data()) for u in (-1.0, 0.0, 2.5)]
    torch.testing.assert_close(rest[0], rest[1])
    torch.testing.assert_close(rest[0], rest[2])


def test_a_hierarchical_prior_scale_is_one_unknown_for_all_its_weights():
    model = pl.BayesianModel(
        network(), pl.likelihoods.Normal(), prior=pl.priors.Normal(scale=pl.hyperpriors.HalfNormal())
    )
    params = {**model.init(), "prior.scale": torch.tensor(0.3).double()}
    scale = math.exp(0.3)
    weights = sum(Normal(0.0, scale).log_prob(p).sum() for p in network().parameters()).detach()
    hyper = math.log(2) + Normal(0.0, 1.0).log_prob(torch.tensor(scale).double())
    torch.testing.assert_close(model.log_prior(params), weights + hyper)


# --- which weights, which prior ---


def test_the_first_matching_pattern_gives_a_weight_its_prior():
    prior = {"0.weight": pl.priors.Laplace(), "*.weight": pl.priors.Normal(scale=3.0), "*": pl.priors.Cauchy()}
    model = pl.BayesianModel(network(), pl.likelihoods.Normal(), prior=prior)
    w = dict(network().named_parameters())
    expected = (
        torch.distributions.Laplace(0.0, 1.0).log_prob(w["0.weight"]).sum()
        + Normal(0.0, 3.0).log_prob(w["2.weight"]).sum()
        + torch.distributions.Cauchy(0.0, 1.0).log_prob(w["0.bias"]).sum()
        + torch.distributions.Cauchy(0.0, 1.0).log_prob(w["2.bias"]).sum()
    )
    torch.testing.assert_close(model.log_prior(model.init()), expected.detach())


def test_a_weight_without_a_prior_and_a_pattern_without_a_weight_are_errors():
    with pytest.raises(ValueError, match=r"0\.bias"):
        pl.BayesianModel(network(), pl.likelihoods.Normal(), prior={"*.weight": pl.priors.Normal()})
    with pytest.raises(ValueError, match="conv"):
        pl.BayesianModel(
            network(), pl.likelihoods.Normal(), prior={"conv*": pl.priors.Normal(), "*": pl.priors.Normal()}
        )
    with pytest.raises(ValueError, match="lora"):
        pl.BayesianModel(network(), pl.likelihoods.Normal(), parameters="*lora_*")


class Tied(nn.Module):
    """y = Wᵀ tanh(W x), one matrix used twice."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.encode(x)))


def test_tied_weights_are_one_unknown_with_one_prior_and_both_their_gradients():
    torch.manual_seed(3)
    tied = Tied().double()
    model = pl.BayesianModel(tied, pl.likelihoods.Normal(scale=0.5))
    assert list(model.start) == ["encode.weight"]
    x = data()[0]
    y = x.flip(1)
    w = (tied.encode.weight.detach() * 1.1).requires_grad_()
    joint = Normal(torch.tanh(x @ w.T) @ w.T, 0.5).log_prob(y).sum() + Normal(0.0, 1.0).log_prob(w).sum()
    (by_hand,) = torch.autograd.grad(joint, w)
    params = {"encode.weight": w.detach()}
    torch.testing.assert_close(model.log_joint(params, (x, y), num_data=N), joint.detach(), rtol=1e-12, atol=1e-12)
    _, slopes = model.slope(params, (x, y), num_data=N)
    torch.testing.assert_close(slopes["encode.weight"], by_hand, rtol=1e-10, atol=1e-10)


def test_frozen_and_unchosen_weights_keep_the_networks_value():
    net = network()
    net[0].weight.requires_grad_(False)
    frozen = pl.BayesianModel(net, pl.likelihoods.Normal())
    assert set(frozen.start) == {"0.bias", "2.weight", "2.bias"}
    chosen = pl.BayesianModel(network(), pl.likelihoods.Normal(), parameters=["2.*"])
    by_rule = pl.BayesianModel(network(), pl.likelihoods.Normal(), parameters=lambda name: name.startswith("2."))
    assert set(chosen.start) == set(by_rule.start) == {"2.weight", "2.bias"}
    x, y = data()
    params = {k: w + 0.1 for k, w in chosen.start.items()}
    by_hand = network()
    with torch.no_grad():
        by_hand[2].weight += 0.1
        by_hand[2].bias += 0.1
    expected = Normal(by_hand(x), 1.0).log_prob(y).sum().detach()
    torch.testing.assert_close(chosen.log_likelihood(params, (x, y)), expected)
    prior = sum(Normal(0.0, 1.0).log_prob(p).sum() for p in by_hand[2].parameters()).detach()
    torch.testing.assert_close(chosen.log_prior(params), prior)


def test_the_users_network_is_copied_and_never_touched():
    net = network()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    model = pl.BayesianModel(net, pl.likelihoods.Normal())
    with torch.no_grad():
        net[0].weight.add_(100.0)
    assert torch.equal(model.init()["0.weight"], before["0.weight"])
    assert all(p.requires_grad for p in net.parameters()) and net.training


@pytest.mark.parametrize("name", ["likelihood", "prior"])
def test_a_submodule_whose_name_would_clash_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        pl.BayesianModel(nn.ModuleDict({name: nn.Linear(1, 1)}), pl.likelihoods.Normal())


def test_what_is_no_network_likelihood_temperature_or_params_is_refused():
    with pytest.raises(TypeError, match="Module"):
        pl.BayesianModel(lambda x: x, pl.likelihoods.Normal())
    with pytest.raises(TypeError, match="log_prob"):
        pl.BayesianModel(network(), nn.MSELoss())
    for temperature in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            pl.BayesianModel(network(), pl.likelihoods.Normal(), temperature=temperature)
    with pytest.raises(ValueError, match="requires_grad"):
        pl.BayesianModel(network().requires_grad_(False), pl.likelihoods.Normal())
    model = pl.BayesianModel(network(), pl.likelihoods.Normal())
    with pytest.raises(ValueError, match="missing"):
        model.log_prior({"0.weight": torch.zeros(4, 3)})


# --- before any data ---


def test_prior_draws_have_the_priors_moments():
    model = pl.BayesianModel(
        nn.Linear(50, 40).double(), pl.likelihoods.Normal(), prior=pl.priors.fan_in(pl.priors.Normal(scale=2.0))
    )
    weight = model.sample_prior(50, seed=1)["weight"]
    assert weight.shape == (50, 40, 50)
    count = weight.numel()
    truth = 2 / math.sqrt(50)
    assert abs(weight.mean()) < 4 * truth / math.sqrt(count)
    assert abs(weight.std() - truth) < 4 * truth / math.sqrt(2 * count)
    again = model.sample_prior(50, seed=1)["weight"]
    assert torch.equal(weight, again) and not torch.equal(weight, model.sample_prior(50, seed=2)["weight"])


def test_the_prior_predictive_of_a_linear_model_has_its_variance():
    model = pl.BayesianModel(
        nn.Linear(2, 1).double(), pl.likelihoods.Normal(scale=0.5), prior=pl.priors.Normal(scale=1.5)
    )
    x = torch.tensor([[1.0, -2.0], [0.0, 0.5]], dtype=torch.float64)
    predictive = model.prior_predictive(x, n=20_000, seed=0)
    truth = 1.5**2 * ((x**2).sum(1, keepdim=True) + 1)
    error = truth * math.sqrt(2 / 20_000)
    assert ((predictive.epistemic - truth).abs() < 4 * error).all()
    torch.testing.assert_close(predictive.aleatoric, torch.full_like(truth, 0.25))


def test_start_values_are_the_networks_own_or_each_layers_reset():
    model = pl.BayesianModel(network(), pl.likelihoods.Normal(scale="learn"))
    own = model.init()
    assert all(torch.equal(own[k], p) for k, p in network().named_parameters())
    assert own["likelihood.scale"].item() == 0.0  # log 1
    fresh = model.init(1)
    assert torch.equal(vector_of(fresh), vector_of(model.init(1)))
    assert not torch.allclose(fresh["0.weight"], own["0.weight"])
    assert fresh["0.weight"].abs().max() <= 1 / math.sqrt(3)  # Linear's own law: uniform within 1/√fan-in


def test_a_posterior_as_a_prior_goes_where_the_weights_are():
    model = pl.BayesianModel(network(), pl.likelihoods.Normal())
    unit = {k: torch.ones_like(w) for k, w in model.init().items()}
    yesterday = pl.posteriors.Diagonal(model, model.init(), unit)
    today = pl.BayesianModel(network(), pl.likelihoods.Normal(), prior=yesterday)
    elsewhere = {k: w.to("meta") for k, w in today.init().items()}  # the device that every machine has besides
    assert today.log_prior(elsewhere).device.type == "meta"
    assert today.log_prior(today.init()) == yesterday.log_prob(today.init())
