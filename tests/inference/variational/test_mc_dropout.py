"""MC dropout climbs the bound it says it climbs: against enumerated masks, quadrature and hand-written formulas."""

from __future__ import annotations

import itertools
import logging
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import plausible as pl
from plausible.core.model import InternalBatch
from plausible.inference.variational.dropped import Dropped, bernoulli_mask, rates_by_weight
from plausible.weights.rng import Keys, run_key, run_keys

RATE, SCALE, NOISE = 0.3, 0.8, 0.5


def small_model(**settings) -> pl.BayesianModel:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    prior = settings.pop("prior", pl.priors.Normal(scale=SCALE))
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=NOISE), prior, **settings).bound(num_data=12.0)


def small_data() -> InternalBatch:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 2, generator=rng, dtype=torch.float64), torch.randn(3, 1, generator=rng, dtype=torch.float64)
    return InternalBatch(
        (x, y, torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64))
    )  # as a batch of 12 data is weighted


def keys(seed: int = 0) -> Keys:
    return Keys(run_key(seed), torch.zeros((), dtype=torch.int64))


def dropped(model, rates, mask=bernoulli_mask) -> Dropped:
    return Dropped(model, rates, "all", mask, keys())


def expected_log_likelihood(params, batch, rates) -> Tensor:
    """Over all 16 masks of an example, without a line of the library."""
    total = torch.zeros((), dtype=torch.float64)
    first, second = rates
    for coins in itertools.product([0.0, 1.0], repeat=4):
        z = torch.tensor(coins, dtype=torch.float64)
        chance = math.prod([1 - first if c else first for c in coins[:2]])
        chance *= math.prod([1 - second if c else second for c in coins[2:]])
        hidden = torch.tanh((batch[0] * z[:2] / (1 - first)) @ params["0.weight"].T + params["0.bias"])
        out = (hidden * z[2:] / (1 - second)) @ params["2.weight"].T + params["2.bias"]
        logs = -0.5 * ((batch[1] - out) / NOISE) ** 2 - math.log(NOISE) - 0.5 * math.log(2 * math.pi)
        total = total + chance * (logs[:, 0] * batch[2]).sum()
    return total


def divergence(params, rates) -> Tensor:
    """½ (1 − p) ‖m‖² / scale² of the weights and ½ ‖b‖² / scale² of the biases, and the normal's own constant."""
    count = sum(p.numel() for p in params.values())
    total = torch.tensor(count * (0.5 * math.log(2 * math.pi) + math.log(SCALE)), dtype=torch.float64)
    for layer, p in (("0", rates[0]), ("2", rates[1])):
        total = total + 0.5 * (1 - p) * (params[f"{layer}.weight"] / (1 - p)).square().sum() / SCALE**2
        total = total + 0.5 * params[f"{layer}.bias"].square().sum() / SCALE**2
    return total


@pytest.mark.parametrize("rates", [(RATE, RATE), (0.1, 0.6)])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_bound_is_that_of_all_masks_enumerated(rates, temperature):
    model, batch = small_model(temperature=temperature), small_data()
    by_weight = {"0.weight": rates[0], "2.weight": rates[1]}
    target = dropped(model, by_weight)
    count = 20_000
    draws = torch.vmap(lambda key: target.objective(model.start, (batch, by_weight), key))(run_keys(3, count))
    found, _ = target.add_remainder(draws, model.start, {k: torch.zeros_like(v) for k, v in model.start.items()})
    expected = (expected_log_likelihood(model.start, batch, rates) - divergence(model.start, rates)) / temperature
    assert abs(found.mean() - expected) < 4 * found.std() / count**0.5


def test_the_slope_is_that_of_all_masks_enumerated():
    model, batch, rates = small_model(), small_data(), (RATE, RATE)
    target = dropped(model, dict.fromkeys(("0.weight", "2.weight"), RATE))
    count = 4_000

    def one(key):
        return target.bound(rng=Keys(key, key[0] * 0)).slope(model.start, batch)[1]

    slopes = torch.vmap(one)(run_keys(5, count))
    leaves = {k: v.clone().requires_grad_() for k, v in model.start.items()}
    bound = expected_log_likelihood(leaves, batch, rates) - divergence(leaves, rates)
    expected = dict(zip(leaves, torch.autograd.grad(bound, list(leaves.values())), strict=True))
    for k, v in slopes.items():
        error = v.std(0) / count**0.5
        assert bool(((v.mean(0) - expected[k]).abs() < 5 * error + 1e-12).all()), k


@pytest.mark.parametrize(
    "prior", [pl.priors.Normal(scale=0.7), pl.priors.Laplace(scale=0.5), pl.priors.StudentT(df=4.0, scale=1.0)]
)
def test_the_priors_change_is_the_divergence_of_two_thin_peaks_by_quadrature(prior):
    """q has a peak of share 1 − p at w / (1 − p) and one of share p at 0; how thin they are cancels in a difference."""
    torch.manual_seed(0)
    model = pl.BayesianModel(nn.Linear(1, 1, bias=False).double(), pl.likelihoods.Normal(scale=1.0), prior)
    target, thin = dropped(model.bound(num_data=1.0), {"weight": RATE}), 1e-3

    def found(w):
        params = {"weight": torch.tensor([[w]], dtype=torch.float64)}
        site = {"weight": type("Site", (), {"weights": ("weight",)})}
        return float(model.log_prior(params) + target.prior_change(params, {"weight": RATE}, site))

    def log_prior(v):
        return float(prior.log_prob(torch.tensor(float(v), dtype=torch.float64)))

    def by_quadrature(w):
        peaks = [(1 - RATE, stats.norm(w / (1 - RATE), thin)), (RATE, stats.norm(0.0, thin))]
        total = 0.0
        for share, peak in peaks:
            total += share * peak.expect(log_prior, lb=peak.ppf(1e-12), ub=peak.ppf(1 - 1e-12))
        return total

    for w in (0.4, -1.3):
        assert found(w) == pytest.approx(by_quadrature(w), abs=2e-3)  # |log prior'| · thin


def test_without_masks_it_is_map():
    torch.manual_seed(0)
    data = torch.randn(20, 2).double(), torch.randn(20, 1).double()
    settings = {"steps": 30, "batch_size": 5, "progress": False, "device": "cpu"}
    model = small_model()
    for optimizer in ("adam", "adamw", "sgd"):
        base = pl.MAP(optimizer=optimizer, learning_rate=0.01)
        point = pl.fit(model, data, base, **settings).params
        found = pl.fit(model, data, pl.MCDropout(rate=1e-12, base=base), **settings).params
        for k, v in point.items():
            torch.testing.assert_close(found[k], v, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_linear_model_comes_to_the_ridge_solution_that_dropout_is(optimizer):
    """E over masks of a linear model is a ridge with p / (1 − p) Σ x² besides the prior's 1 / (1 − p)."""
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + 0.3 * torch.randn(40, 1, generator=rng).double()
    model = pl.BayesianModel(
        nn.Linear(3, 1, bias=False).double(), pl.likelihoods.Normal(scale=0.5), pl.priors.Normal(scale=SCALE)
    )
    method = pl.MCDropout(rate=RATE, base=pl.MAP(optimizer=optimizer, learning_rate=0.05))
    often = x.repeat(25, 1), y.repeat(25, 1)  # 25 masks of every example in a step
    posterior = pl.fit(model, often, method, steps=300, batch_size=1000, num_data=40, progress=False)
    ridge = RATE / (1 - RATE) * (x * x).sum(0) / 0.25 + 1 / ((1 - RATE) * SCALE**2)
    expected = torch.linalg.solve(x.T @ x / 0.25 + torch.diag(ridge), x.T @ y / 0.25)
    torch.testing.assert_close(
        posterior.params["weight"].T, expected, rtol=0, atol=0.01
    )  # the learning rate ends at zero


def test_runs_over_splits_and_rates_are_vectorised_and_equal_lone_ones(caplog):
    torch.manual_seed(0)
    sets = [(torch.randn(20, 2).double(), torch.randn(20, 1).double()) for _ in range(2)]
    methods = [pl.MCDropout(rate=r, base=pl.MAP(learning_rate=0.01)) for r in (0.05, 0.2, 0.5)]
    pairs = [(d, m) for d in sets for m in methods]
    settings = {"steps": 20, "batch_size": 10, "progress": False, "device": "cpu"}
    model = small_model()
    with caplog.at_level(logging.WARNING, "plausible"):
        together = pl.fit_many(model, [d for d, _ in pairs], [m for _, m in pairs], **settings)
    assert not caplog.records
    for posterior, (d, m) in zip(together, pairs, strict=True):
        alone = pl.fit(model, d, m, **settings)
        assert float(posterior.rates["0.weight"]) == m.rate
        for k, v in alone.params.items():
            torch.testing.assert_close(posterior.params[k], v, rtol=1e-7, atol=1e-9)


def test_the_published_weight_decay_is_this_prior():
    """N τ times the paper's 1/N Σ ½ (y − ŷ)² + λ ‖m‖² is minus the log likelihood and the bound's term of m."""
    n, tau, decay = 50, 4.0, 1e-3
    prior, noise = pl.MCDropout.prior_from(precision=tau, weight_decay=decay, num_data=n, rate=RATE)
    assert noise == pytest.approx(0.5)
    assert n * tau * decay == pytest.approx((1 - RATE) / (2 * prior.scale**2))
    assert pl.MCDropout.prior_from(precision=tau, length_scale=0.1)[0].scale == pytest.approx(10.0)
    with pytest.raises(ValueError, match="give length_scale, or weight_decay, num_data and rate"):
        pl.MCDropout.prior_from(precision=tau, weight_decay=decay)


def test_rates_are_chosen_by_patterns_and_the_first_match_wins():
    model = small_model()
    assert rates_by_weight(model, 0.2) == {"0.weight": 0.2, "2.weight": 0.2}
    assert rates_by_weight(model, {"2": 0.4, "*": 0.1}) == {"0.weight": 0.1, "2.weight": 0.4}
    assert rates_by_weight(model, {"0.weight": 0.0, "*": 0.1}) == {"2.weight": 0.1}


def fit(method, network=None):
    model = small_model() if network is None else pl.BayesianModel(network.double(), pl.likelihoods.Normal(scale=1.0))
    return pl.fit(model, (torch.ones(4, 2).double(), torch.ones(4, 1).double()), method, steps=1, progress=False)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: pl.MCDropout(rate=1.0), r"rate must lie in \[0, 1\), got 1.0"),
        (lambda: pl.MCDropout(where="convolutions"), "where must be one of all, .* got 'convolutions'"),
        (lambda: pl.MCDropout(base=pl.SWAG()), "base must be a pl.MAP"),
        (lambda: fit(pl.MCDropout(rate={"7": 0.1})), "rate pattern '7' matches no layer; there are 0, 2"),
        (lambda: fit(pl.MCDropout(where="convolution")), "where='convolution' meets no layer of this network"),
        (lambda: fit(pl.MCDropout(where="own")), "needs a network with dropout layers"),
    ],
)
def test_mistakes_are_named(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


def test_a_posterior_as_a_prior_is_refused_with_a_way_out():
    first = fit(pl.MAP())
    with pytest.raises(pl.NotSupported, match="posterior used as a prior"):
        pl.fit(
            small_model(prior=first), (torch.ones(4, 2).double(), torch.ones(4, 1).double()), pl.MCDropout(), steps=1
        )


def test_own_dropout_layers_train_as_map_does_and_predict_with_masks():
    def network():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 1))

    posterior, point = fit(pl.MCDropout(where="own"), network()), fit(pl.MAP(), network())
    assert all(torch.equal(v, posterior.params[k]) for k, v in point.params.items())
    x = torch.randn(2, 2).double()
    assert float(posterior.predict(x, num_samples=50).outputs.std(0).min()) > 0
    with pytest.raises(pl.NotSupported, match="predict"):
        posterior.sample(1)
