"""The bound of independent normals: its parts against formulas, its estimators against each other."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import plausible as pl
from plausible.core.data import make_source
from plausible.core.model import InternalBatch
from plausible.inference.variational.mean_field import MEAN, RHO, MeanField, joined
from plausible.weights.rng import run_keys

FOUR = 4.0  # Monte Carlo errors
CPU = torch.device("cpu")


class Sequences(nn.Module):
    """One linear map at five positions of an example, which share its weights."""

    def __init__(self):
        super().__init__()
        self.each, self.out = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(self.each(x.reshape(-1, 5, 2)).relu().mean(1).square())


class Reused(nn.Module):
    """A layer that is used twice, whose two uses see one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.out = nn.Linear(10, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.again(self.again(self.first(x).tanh()).tanh()))


class Picture(nn.Module):
    """A convolution whose outputs at all positions meet in a square."""

    def __init__(self, **settings):
        super().__init__()
        self.convolution, self.out = nn.Conv2d(2, 2, 2, **settings), nn.Linear(2, 3)

    def forward(self, x):
        return self.out(self.convolution(x.reshape(-1, 2, 1, 5).expand(-1, 2, 3, 5)).mean((2, 3)).square())


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)),
    "convolution": Picture,
    "grouped convolution": lambda: Picture(groups=2, bias=False),
    "sequences": Sequences,
    "reused layer": Reused,
    "norm": lambda: nn.Sequential(nn.Linear(10, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)),
}


def model_of(network, prior=None, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = network().double()
    prior = prior or pl.priors.Normal(scale=0.7)
    return pl.BayesianModel(made, pl.likelihoods.Categorical(), prior, **settings).bound(num_data=30.0, training=True)


def batch_of(count=6, weight=5.0):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(count, 10, generator=rng, dtype=torch.float64)
    return InternalBatch((x, torch.arange(count) % 3, torch.full((count,), weight, dtype=torch.float64)))


def point_of(model, scale=0.3):
    """Means away from zero, and deviations that differ."""
    mean = {k: w + 0.1 for k, w in model.init().items()}
    rho = {
        k: torch.linspace(0.5, 1.5, w.numel(), dtype=w.dtype).mul(scale).expm1().log().reshape(w.shape)
        for k, w in mean.items()
    }
    return joined(mean, rho)


def bounds(model, estimator, params, batch, draws, num_samples=1, seed=0):
    bound = MeanField(model, estimator, num_samples)
    return torch.vmap(lambda key: bound.objective(params, batch, key))(run_keys(seed, draws))


def slopes(model, estimator, params, batch, draws, num_samples=1, seed=0):
    """Gradients (draws, unknowns) of the bound by noise, means first."""
    bound = MeanField(model, estimator, num_samples)
    found = torch.vmap(lambda key: torch.func.grad(bound.objective)(params, batch, key))(run_keys(seed, draws))
    return torch.cat([found[k].flatten(1) for k in params], 1)


def total_variance(found):
    return float(found.var(0).sum())


# --- the prior's part ---


@pytest.mark.parametrize("prior", [pl.priors.Normal(scale=0.7), pl.priors.fan_in(pl.priors.Normal(scale=1.3))])
@pytest.mark.parametrize("estimator", ["local", "flipout", "weights"])
def test_without_data_the_bound_is_minus_the_divergence_from_a_normal_prior(estimator, prior):
    model = model_of(NETWORKS["linear"], prior)
    params = point_of(model)
    found = bounds(model, estimator, params, batch_of(weight=0.0), draws=3)
    expected = 0.0
    for k, w in model.start.items():
        fan_in = 1 if w.dim() == 1 or isinstance(prior, pl.priors.Normal) else w.shape[1]
        own = Normal(params[MEAN + k], nn.functional.softplus(params[RHO + k]))
        scale = 0.7 if isinstance(prior, pl.priors.Normal) else 1.3
        expected += kl_divergence(own, Normal(torch.zeros_like(w), scale / fan_in**0.5)).sum()
    torch.testing.assert_close(found, -expected.expand(3), rtol=1e-12, atol=0)


def test_without_data_the_bound_is_minus_the_divergence_from_a_scale_mixture_by_quadrature():
    model = model_of(lambda: nn.Linear(10, 3, bias=False), pl.priors.ScaleMixture([1.0, 0.1], [0.25, 0.75]))
    params = point_of(model)
    found = bounds(model, "local", params, batch_of(weight=0.0), draws=4000)
    mean, scale = params[MEAN + "weight"], nn.functional.softplus(params[RHO + "weight"])
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    w = mean.unsqueeze(-1) + scale.unsqueeze(-1) * grid
    log_q = Normal(mean.unsqueeze(-1), scale.unsqueeze(-1)).log_prob(w)
    log_p = torch.log(0.25 * Normal(0.0, 1.0).log_prob(w).exp() + 0.75 * Normal(0.0, 0.1).log_prob(w).exp())
    expected = (torch.trapezoid(log_q.exp() * (log_p - log_q), grid) * scale).sum()
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean() - expected)) < FOUR * error
    assert error < 0.01 * abs(float(expected))


def test_unknown_noise_has_a_normal_of_its_own():
    network = nn.Linear(10, 1).double()
    noise = pl.likelihoods.Normal(scale=pl.hyperpriors.LogNormal(loc=0.3, scale=0.6))
    model = pl.BayesianModel(network, noise).bound(num_data=30.0)
    params = point_of(model)
    x, _, _ = batch_of()
    found = bounds(model, "local", params, InternalBatch((x, x[:, :1], torch.zeros(6, dtype=x.dtype))), draws=4000)
    # log scale ~ N(0.3, 0.6²) a priori, so that all of it is normal.
    expected = torch.zeros((), dtype=torch.float64)
    for k, w in model.start.items():
        prior = Normal(0.3, 0.6) if k == "likelihood.scale" else Normal(0.0, 1.0)
        own = Normal(params[MEAN + k], nn.functional.softplus(params[RHO + k]))
        expected += kl_divergence(own, Normal(torch.full_like(w, prior.loc), prior.scale)).sum()
    assert abs(float(found.mean() + expected)) < FOUR * float(found.std()) / math.sqrt(len(found))


# --- the likelihood's part ---


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("estimator", ["local", "flipout", "weights"])
def test_a_narrow_normal_sees_the_log_joint_of_its_mean(estimator, temperature):
    model = model_of(NETWORKS["linear"], temperature=temperature)
    mean = {k: w + 0.1 for k, w in model.init().items()}
    sigma = 1e-9
    params = joined(mean, {k: torch.full_like(w, math.log(sigma)) for k, w in mean.items()})
    batch = batch_of()
    count = sum(w.numel() for w in mean.values())
    entropy = count * (math.log(sigma) + 0.5 * math.log(2 * math.pi * math.e))
    found = bounds(model, estimator, params, batch, draws=1) - entropy
    assert float(found) == pytest.approx(float(model.log_joint(mean, (batch[0], batch[1]))), rel=1e-7)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_every_estimator_has_the_same_expected_gradient(estimator, network):
    model = model_of(NETWORKS[network])
    params, batch = point_of(model), batch_of()
    plain = slopes(model, "weights", params, batch, draws=4000)
    other = slopes(model, estimator, params, batch, draws=4000, seed=1)
    off = (plain.mean(0) - other.mean(0)).abs()
    error = ((plain.var(0) + other.var(0)) / 4000).sqrt()
    assert float((off / error.clamp(min=1e-12)).max()) < FOUR


DIGITS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 10)),
}


@pytest.mark.parametrize("network", DIGITS)
def test_gradients_of_a_batch_vary_less_where_examples_do_not_share_a_draw(network):
    digits = pl.datasets.digits()
    model = model_of(DIGITS[network])
    batch = InternalBatch(
        (digits.x_train[:128].double().reshape(128, 1, 8, 8), digits.y_train[:128], torch.ones(128).double())
    )
    params = point_of(model, 0.1)
    plain, local, flipped = (slopes(model, e, params, batch, draws=60) for e in ("weights", "local", "flipout"))
    for name, other, least in (("local", local, 2.0), ("flipout", flipped, 1.0)):
        factor = total_variance(plain) / total_variance(other)
        print(f"{network}, {name}: {factor:.1f} times less")
        assert factor > least


def test_two_draws_a_step_halve_the_variance():
    model = model_of(NETWORKS["linear"])
    params, batch = point_of(model), batch_of()
    one, two = (total_variance(slopes(model, "weights", params, batch, draws=4000, num_samples=s)) for s in (1, 2))
    assert one / two == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("batch_size", [1, 7, 30])
def test_batches_of_any_size_add_up_to_the_gradient_of_all_data(batch_size):
    model = model_of(NETWORKS["linear"], pl.priors.ScaleMixture([1.0, 0.1], [0.5, 0.5]))
    x, y, _ = batch_of(30)
    params, bound = point_of(model), MeanField(model, "weights", 1)
    key = run_keys(0, 1)[0]
    slope = torch.func.grad(bound.objective)
    whole = slope(params, InternalBatch((x, y, torch.ones(30, dtype=x.dtype))), key)
    source = make_source(model, (x, y), batch_size=batch_size, seed=0, device=CPU)
    sizes = [len(part) for part in torch.arange(30).split(batch_size)]
    assert source.steps_per_epoch == len(sizes)
    parts = [slope(params, source.batch(step), key) for step in range(len(sizes))]
    for k, expected in whole.items():
        found = sum(size / 30 * part[k] for size, part in zip(sizes, parts, strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
