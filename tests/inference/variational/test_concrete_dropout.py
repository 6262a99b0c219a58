"""Concrete dropout's rates have the right gradient and go the right way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize
from scipy.special import expit, logit
from torch import nn

import plausible as pl
from plausible.core.model import InternalBatch
from plausible.inference.variational.concrete_dropout import HIGHEST, LOGIT, LOWEST, Concrete, ConcreteMask, entropy
from plausible.inference.variational.dropped import Dropped
from plausible.weights.masked_layers import Site
from plausible.weights.rng import Keys, run_key

NAMES = ("0.weight", "2.weight")


def small_model(**settings) -> pl.BayesianModel:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.5), **settings).bound(num_data=6.0)


def small_data() -> InternalBatch:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 3, generator=rng).double(), torch.randn(6, 1, generator=rng).double()
    return InternalBatch((x, y, torch.ones(6, dtype=torch.float64)))


def keys() -> Keys:
    return Keys(run_key(0), torch.zeros((), dtype=torch.int64))


def concrete(model, temperature=0.1) -> Concrete:
    return Concrete(model, {}, "all", ConcreteMask(temperature), keys())


def unknowns(model, *logits):
    values = {LOGIT + k: torch.tensor(v, dtype=torch.float64) for k, v in zip(NAMES, logits, strict=True)}
    return {**model.start, **values}


@pytest.mark.parametrize("prior", [pl.priors.Normal(scale=0.7), pl.priors.Laplace(scale=0.7)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_rates_gradient_is_a_finite_difference_with_the_same_noise(prior, temperature):
    model, batch, step = small_model(prior=prior, temperature=temperature), small_data(), 1e-6
    params = unknowns(model, -1.5, 0.3)
    _, slopes = concrete(model).slope(params, batch)  # the same keys at every call
    for k in params:
        flat = params[k].flatten()
        for i in range(min(2, flat.numel())):
            values = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[i] += sign * step
                values.append(concrete(model).slope({**params, k: moved.reshape(params[k].shape)}, batch)[0])
            difference = (values[0] - values[1]) / (2 * step)
            assert float(slopes[k].flatten()[i]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6), k


def test_what_is_not_the_likelihood_has_its_own_slope():
    model, batch = small_model(), small_data()
    params, target = unknowns(model, -1.0, 0.5), concrete(model)
    whole = target.slope(params, batch)[1]
    rest = target.prior_slope(params)
    nothing = InternalBatch((batch[0], batch[1], torch.zeros(6, dtype=torch.float64)))
    alone = concrete(model).slope(params, nothing)[1]
    for k, v in rest.items():
        torch.testing.assert_close(v, alone[k])
    assert not torch.allclose(whole["0.weight"], rest["0.weight"])


def test_cold_masks_are_coins_and_the_bound_is_mc_dropouts_and_the_entropy():
    model, batch = small_model(), small_data()
    params = unknowns(model, -1.0, 0.5)
    rates = {k: LOWEST + (HIGHEST - LOWEST) * expit(float(params[LOGIT + k])) for k in NAMES}
    found, _ = concrete(model, temperature=1e-6).slope(params, batch)

    def same_coins(own, x, rate):  # a relaxed coin says 1, and drops, for a large u; a plain one for a small u
        flipped = 1 - own.uniform(x.shape, torch.float32).to(x.dtype)
        return x * (flipped >= rate) / (1 - rate)

    plain, _ = Dropped(model, rates, "all", same_coins, keys()).slope(model.start, batch)
    entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in rates.values()]
    assert float(found) == pytest.approx(float(plain) + 3 * entropies[0] + 4 * entropies[1], rel=1e-9)


def test_the_entropy_is_that_of_all_units_coins():
    p = torch.tensor(0.2, dtype=torch.float64)
    coin = torch.distributions.Bernoulli(probs=p).entropy()
    torch.testing.assert_close(entropy({"w": p}, {"w": Site(7, ("w",))}), 7 * coin)


def test_relaxed_masks_keep_the_mean():
    """Nearly: their law's moments are known by quadrature, and are a coin's up to what lies between 0 and 1."""
    p, count = 0.3, 200_000
    mask = ConcreteMask(0.1)(keys(), torch.ones(count), torch.tensor(p))
    left = lambda u: expit(-(logit(p) + logit(u)) / 0.1) / (1 - p)  # noqa: E731
    mean, square = (integrate.quad(lambda u, k=k: left(u) ** k, 0, 1, points=[1 - p], limit=200)[0] for k in (1, 2))
    sd = (square - mean**2) ** 0.5
    assert float(mask.mean()) == pytest.approx(mean, abs=4 * sd / count**0.5)
    assert float(mask.std()) == pytest.approx(sd, rel=0.01)
    assert mean == pytest.approx(1.0, abs=0.01) and sd == pytest.approx((p / (1 - p)) ** 0.5, rel=0.1)


def best_rate(x, y, noise):
    """Where the bound of a linear model is highest, whose expectation over coins has a formula."""

    def minus_bound(v):
        w, b, p = v[:4], v[4], expit(v[5])
        misfit = ((y[:, 0] - x @ w - b) ** 2).sum() + p / (1 - p) * ((x * w) ** 2).sum()
        coins = 4 * (p * np.log(p) + (1 - p) * np.log(1 - p))
        return misfit / (2 * noise**2) + 0.5 * (w @ w) / (1 - p) + 0.5 * b**2 + coins

    return expit(optimize.minimize(minus_bound, np.r_[np.ones(4), 0.0, -1.0]).x[5])


def test_rates_come_to_the_bounds_best_and_fall_with_more_data():
    rng, noise, found = torch.Generator().manual_seed(3), 3.0, []
    x = torch.randn(40, 4, generator=rng)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(40, 1, generator=rng)
    for count in (10, 40):
        torch.manual_seed(0)
        model = pl.BayesianModel(nn.Linear(4, 1), pl.likelihoods.Normal(scale=noise))
        often = (x[:count].repeat(1000 // count, 1), y[:count].repeat(1000 // count, 1))  # many masks in a step
        method = pl.ConcreteDropout(base=pl.MAP(learning_rate=0.1))
        settings = {"steps": 200, "batch_size": 1000, "num_data": count, "progress": False, "device": "cpu"}
        found.append(float(pl.fit(model, often, method, **settings).rates["weight"]))
        best = best_rate(x[:count].double().numpy(), y[:count].double().numpy(), noise)
        assert found[-1] == pytest.approx(best, rel=0.08)  # relaxed coins scatter 5 % less than coins
    assert found[1] < 0.6 * found[0]


def test_rates_move_from_where_they_start_and_are_the_posteriors():
    model = small_model()
    settings = {"steps": 5, "batch_size": 6, "progress": False, "device": "cpu"}
    batch = small_data()
    posterior = pl.fit(model, (batch[0], batch[1]), pl.ConcreteDropout(rate=0.2), **settings)
    assert isinstance(posterior, pl.posteriors.Dropout)
    assert posterior.rates.keys() == set(NAMES)
    for rate in posterior.rates.values():
        assert 0.15 < float(rate) < 0.25 and float(rate) != pytest.approx(0.2, abs=1e-6)


def test_learned_rates_of_several_runs_equal_those_of_lone_ones():
    methods = [pl.ConcreteDropout(rate=r, base=pl.MAP(learning_rate=0.01)) for r in (0.05, 0.3)]
    settings = {"steps": 10, "batch_size": 6, "progress": False, "device": "cpu"}
    model, batch = small_model(), small_data()
    sets = [(batch[0], batch[1])] * 2
    for found, method in zip(pl.fit_many(model, sets, methods, **settings), methods, strict=True):
        alone = pl.fit(model, sets[0], method, **settings)
        for k in NAMES:
            torch.testing.assert_close(found.rates[k], alone.rates[k])
            torch.testing.assert_close(found.params[k], alone.params[k])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"where": "own"}, "has no rates to learn"),
        ({"rate": 0.0}, "rate must lie in"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"base": pl.SWAG()}, "base must be a pl.MAP"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        pl.ConcreteDropout(**settings)
