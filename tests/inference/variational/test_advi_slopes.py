"""ADVI's slopes, written by hand in the source, against autograd through the definition of the bound."""

from __future__ import annotations

import pytest
import torch
from tests.oracles import linear_regression
from torch import nn
from torch.distributions import MultivariateNormal

import plausible as pl
from plausible.core.model import InternalBatch
from plausible.inference.variational.families import make_family
from plausible.weights.algebra import from_vector, to_vector

FAMILIES = ["diagonal", "low-rank", "full"]
TRUTH = linear_regression(n=20, inputs=3, seed=2)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def somewhere(method, model):
    """A state away from every symmetry."""
    state = method.init(model, {k: normal(*v.shape, seed=i) for i, (k, v) in enumerate(model.start.items())})
    spread = state["spread"]
    spread["log_scale"] += 0.5 * normal(*spread["log_scale"].shape, seed=7)
    if "shape" in spread:
        spread["shape"] += 0.5 * normal(*spread["shape"].shape, seed=8)
        if method.family == "full":
            spread["shape"].copy_(spread["shape"].tril(-1))
    if "log_length" in spread:
        spread["log_length"] += 0.5 * normal(*spread["log_length"].shape, seed=9)
    return state


def factor(family, log_scale, shape=None, log_length=None):
    """L with draws mean + L z, by the families' definitions."""
    scales = torch.diag(log_scale.exp())
    if family == "diagonal":
        return scales
    eye = torch.eye(len(log_scale), dtype=log_scale.dtype)
    return torch.cat([scales, scales @ shape * log_length.exp()], 1) if family == "low-rank" else scales @ (eye + shape)


def by_autograd(family, model, state, z, bound):
    """Slopes of `bound(mean vector, L, draws)` in mean, log_scale and shape."""
    moving = [to_vector(state["params"]), *state["spread"].values()]
    moving = [t.detach().clone().requires_grad_() for t in moving]
    lower = factor(family, *moving[1:])
    value = bound(moving[0], lower, moving[0] + z @ lower.T)
    return torch.autograd.grad(value, moving), value


def whole_batch():
    x, y = TRUTH.data()
    return InternalBatch((x, y, torch.ones(len(x), dtype=torch.float64)))


def mean_log_joint(model, state, draws):
    batch = TRUTH.data()
    return sum(model.log_joint(from_vector(d, state["params"]), batch) for d in draws) / len(draws)


def assert_slopes(method, model, state, z, expected, value=None):
    _, elbo, slopes = method.slopes(model, state, whole_batch(), z)
    mean = to_vector({k: slopes[f"mean {k}"] for k in state["params"]})
    torch.testing.assert_close(mean, expected[0], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(slopes["log_scale"], expected[1], atol=1e-9, rtol=1e-9)
    if method.family != "diagonal":
        wanted = expected[2].tril(-1) if method.family == "full" else expected[2]
        torch.testing.assert_close(slopes["shape"], wanted, atol=1e-9, rtol=1e-9)
    if method.family == "low-rank":
        torch.testing.assert_close(slopes["log_length"], expected[3], atol=1e-9, rtol=1e-9)
    if value is not None:
        torch.testing.assert_close(elbo, value.detach(), atol=1e-9, rtol=1e-9)


def noise(method, state, count):
    return normal(count, make_family(method.family, method.rank).noise(len(state["spread"]["log_scale"])), seed=3)


def entropy(lower):
    zero = torch.zeros(len(lower), dtype=torch.float64)
    return MultivariateNormal(zero, lower @ lower.T).entropy()


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_slopes_are_those_of_the_mean_log_joint_and_the_entropy(family, samples):
    """With a prior that has no closed form under q."""
    method = pl.ADVI(family=family, rank=2, num_samples=samples)
    model = TRUTH.model(prior=pl.priors.Laplace(scale=0.7)).bound(num_data=20.0)
    state = somewhere(method, model)
    z = noise(method, state, samples)
    expected, value = by_autograd(
        family, model, state, z, lambda m, lower, draws: mean_log_joint(model, state, draws) + entropy(lower)
    )
    assert_slopes(method, model, state, z, expected, value)


@pytest.mark.parametrize("prior", [pl.priors.Normal(scale=0.7), pl.priors.fan_in(pl.priors.Normal(scale=2.0))], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_normal_priors_enter_by_their_exact_expectation(family, prior):
    method = pl.ADVI(family=family, rank=2, num_samples=3)
    model = TRUTH.model(prior=prior).bound(num_data=20.0, temperature=0.5)
    state = somewhere(method, model)
    z = noise(method, state, 3)
    scales = to_vector({k: v * 0 + 1 / _precision(model, k, v) ** 0.5 for k, v in state["params"].items()})

    def bound(m, lower, draws):
        likelihood = sum(model.log_likelihood(from_vector(d, state["params"]), TRUTH.data()) for d in draws) / 3
        sampled = torch.distributions.Normal(0.0, scales).log_prob(m).sum()
        expected = sampled - 0.5 * ((lower**2).sum(1) / scales**2).sum()
        return (likelihood + expected) / 0.5 + entropy(lower)

    expected, _ = by_autograd(family, model, state, z, bound)
    assert_slopes(method, model, state, z, expected)


def _precision(model, name, weight):
    """Read off the prior's own log density: −½ p w² + constant."""
    prior = model.groups[0].prior
    one = torch.ones_like(weight)
    return -2 * float((prior.log_prob(one) - prior.log_prob(0 * one)).flatten()[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_sticking_the_landing_follows_the_draws_and_holds_q_still(family):
    method = pl.ADVI(family=family, rank=2, num_samples=4, estimator="sticking-the-landing")
    model = TRUTH.model().bound(num_data=20.0)
    state = somewhere(method, model)
    z = noise(method, state, 4)

    def bound(m, lower, draws):
        held = MultivariateNormal(m.detach(), (lower @ lower.T).detach())
        return mean_log_joint(model, state, draws) - held.log_prob(draws).mean()

    expected, _ = by_autograd(family, model, state, z, bound)
    assert_slopes(method, model, state, z, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_estimators_and_the_exact_prior_have_one_expectation(family):
    """Over z and −z of an orthogonal frame the first two moments of the noise are exact, which is all a quadratic sees."""
    model = TRUTH.model().bound(num_data=20.0)
    found = []
    for settings in ({}, {"estimator": "sticking-the-landing"}, {"exact": False}):
        exact = settings.pop("exact", True)
        method = pl.ADVI(family=family, rank=2, num_samples=1, **settings)
        state = somewhere(method, model)
        if not exact:
            state.pop("precision")
        size = noise(method, state, 1).shape[1]
        frame = torch.linalg.qr(normal(size, size, seed=4)).Q * size**0.5
        found.append(method.slopes(model, state, whole_batch(), torch.cat([frame, -frame]))[2])
    for other in found[1:]:
        for k, v in found[0].items():
            torch.testing.assert_close(other[k], v, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("batch_size", [1, 7, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_slope_averaged_over_all_batches_is_the_same_for_every_batch_size(family, batch_size):
    """Every rotation of the data, so that each example is in the ragged last batch as often as the others."""
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        for i, p in enumerate(network.parameters()):
            p.copy_(normal(*p.shape, seed=i))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=pl.hyperpriors.HalfNormal())).bound(num_data=20.0)
    method = pl.ADVI(family=family, rank=2, num_samples=2)
    state = somewhere(method, model)
    z = noise(method, state, 2)
    whole = method.slopes(model, state, whole_batch(), z)[2]
    total: dict = {}
    x, y = TRUTH.data()
    count = 0
    for turn in range(20 if batch_size == 7 else 1):
        order = torch.arange(20).roll(turn)
        for part in order.split(batch_size):
            full = torch.cat([part, order[: batch_size - len(part)]])  # filled up with examples of weight zero
            weights = torch.zeros(batch_size, dtype=torch.float64)
            weights[: len(part)] = 20 / len(part)
            slopes = method.slopes(model, state, InternalBatch((x[full], y[full], weights)), z)[2]
            total = {k: total.get(k, 0) + v for k, v in slopes.items()}
            count += 1
    for k, v in whole.items():
        torch.testing.assert_close(total[k] / count, v, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_a_full_covariance_of_strong_correlations_stays_definite_in_single_precision(seed):
    density = pl.LogDensity(lambda p: -0.5 * (p["w"] ** 2).sum(), {"w": torch.zeros(6)})
    shape = 10 * torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)).tril(-1)
    spread = {"log_scale": torch.zeros(6), "shape": shape}
    posterior = make_family("full", 1).posterior(density, density.init(), spread)
    root = torch.eye(6).double() + shape.double()
    torch.testing.assert_close(posterior.covariance, root @ root.mT)
