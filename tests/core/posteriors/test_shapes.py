"""Every shape draws from the distribution it states: means and all covariances over 200,000 draws, and its density."""

import math

import pytest
import torch
from tests.oracles import anisotropic_covariance, assert_moments, vector_of
from torch import nn
from torch.distributions import MultivariateNormal, Normal

import plausible as pl
from plausible import posteriors

DRAWS = 200_000
SIZE = 11  # of the two-layer network below: 3 -> 2 -> 1 with biases


def two_layers(dtype=torch.float64) -> pl.BayesianModel:
    torch.manual_seed(0)
    return pl.BayesianModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).to(dtype), pl.likelihoods.Normal())


def tree_of(model, vector):
    parts = vector.split([w.numel() for w in model.start.values()], -1)
    return {k: p.reshape(*vector.shape[:-1], *w.shape) for (k, w), p in zip(model.start.items(), parts, strict=True)}


def some_mean(dtype=torch.float64):
    return torch.linspace(-3, 2, SIZE, dtype=dtype)


def low_rank_parts():
    rng = torch.Generator().manual_seed(1)
    variance = torch.logspace(-2, 0, SIZE, dtype=torch.float64)[torch.randperm(SIZE, generator=rng)]
    return variance, torch.randn(3, SIZE, generator=rng, dtype=torch.float64)


def gaussians(model):
    """Each shape with the covariance that it states."""
    mean, dtype = some_mean(), model.dtype
    full = anisotropic_covariance(SIZE)
    scale = torch.logspace(-1.5, 0.5, SIZE, dtype=torch.float64)
    variance, factors = low_rank_parts()
    given = lambda v: tree_of(model, v.to(dtype))  # noqa: E731
    return {
        "Full": (posteriors.Full(model, given(mean), full.to(dtype)), full),
        "Diagonal": (posteriors.Diagonal(model, given(mean), given(scale)), torch.diag(scale**2)),
        "LowRank": (
            posteriors.LowRank(model, given(mean), given(variance), given(factors)),
            torch.diag(variance) + factors.T @ factors,
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["Full", "Diagonal", "LowRank"])
def test_a_gaussian_draws_the_mean_and_covariance_that_it_states(name, dtype):
    posterior, covariance = gaussians(two_layers(dtype))[name]
    spectrum = torch.linalg.eigvalsh(covariance)
    assert spectrum[-1] / spectrum[0] >= 100
    draws = posterior.sample(DRAWS, seed=3)
    assert all(w.dtype == dtype for w in draws.values())
    assert_moments(vector_of(draws, 1), some_mean(), covariance)


@pytest.mark.parametrize("name", ["Full", "LowRank"])
def test_the_covariance_between_two_layers_is_drawn(name):
    posterior, covariance = gaussians(two_layers())[name]
    first, second = slice(0, 8), slice(8, SIZE)
    across = covariance[first, second]
    assert across.abs().max() > 0.05  # else nothing would be shown
    draws = vector_of(posterior.sample(DRAWS, seed=4), 1) - some_mean()
    seen = draws[:, first].T @ draws[:, second] / DRAWS
    variance = covariance.diagonal()
    error = ((variance[first, None] * variance[None, second] + across**2) / DRAWS).sqrt()
    assert ((seen - across).abs() / error).max() < 5


@pytest.mark.parametrize("name", ["Full", "Diagonal", "LowRank"])
def test_a_gaussian_density_is_torchs(name):
    model = two_layers()
    posterior, covariance = gaussians(model)[name]
    truth = MultivariateNormal(some_mean(), covariance)
    points = some_mean() + torch.randn(5, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = truth.log_prob(points)
    torch.testing.assert_close(posterior.log_prob(tree_of(model, points)), expected, rtol=1e-10, atol=1e-10)
    one = posterior.log_prob(tree_of(model, points[0]))
    torch.testing.assert_close(one, expected[0], rtol=1e-10, atol=1e-10)
    vmapped = torch.vmap(posterior.log_prob)(tree_of(model, points))
    torch.testing.assert_close(vmapped, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["Full", "Diagonal", "LowRank"])
def test_draws_are_a_function_of_seed_and_number_alone(name):
    posterior, _ = gaussians(two_layers())[name]
    many = vector_of(posterior.sample(50, seed=7), 1)
    assert torch.equal(vector_of(posterior.sample(10, seed=7), 1), many[:10])
    picked = vector_of(posterior.draw([31, 4, 4], 7), 1)
    torch.testing.assert_close(picked, many[[31, 4, 4]], rtol=1e-14, atol=1e-14)
    assert not torch.equal(vector_of(posterior.sample(50, seed=8), 1), many)


def test_sampling_without_a_seed_is_fresh_and_leaves_the_global_generator_alone():
    shapes = gaussians(two_layers())
    before = torch.get_rng_state()
    for posterior, _ in shapes.values():
        assert not torch.equal(vector_of(posterior.sample(3), 1), vector_of(posterior.sample(3), 1))
    assert torch.equal(before, torch.get_rng_state())


def test_a_gaussian_keeps_the_order_of_the_models_unknowns():
    model = two_layers()
    mean = tree_of(model, some_mean())
    shuffled = {k: mean[k] for k in reversed(mean)}
    scale = {k: torch.full_like(w, 0.1) for k, w in shuffled.items()}
    posterior = posteriors.Diagonal(model, shuffled, scale)
    assert torch.equal(vector_of(posterior.mean), some_mean())


def test_a_matrix_that_is_no_covariance_is_refused():
    model = two_layers()
    mean = tree_of(model, some_mean())
    with pytest.raises(ValueError, match="positive definite"):
        posteriors.Full(model, mean, -torch.eye(SIZE, dtype=torch.float64))
    with pytest.raises(ValueError, match="11"):
        posteriors.Full(model, mean, torch.eye(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="unknowns"):
        posteriors.Diagonal(model, {"other": some_mean()}, {"other": some_mean()})


def test_a_point_draws_itself_and_has_no_density():
    model = two_layers()
    point = posteriors.Delta(model, model.init())
    draws = point.sample(3, seed=0)
    assert all(torch.equal(draws[k][2], w) for k, w in model.start.items())
    with pytest.raises(pl.NotSupported, match="density"):
        point.log_prob(model.start)


# --- stored draws ---


def test_stored_draws_are_picked_evenly_and_average_to_their_own_moments():
    model = two_layers()
    covariance = anisotropic_covariance(SIZE, seed=5)
    stored = MultivariateNormal(some_mean(), covariance)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        rows = stored.sample((500,))
    posterior = posteriors.Samples(model, tree_of(model, rows))
    torch.testing.assert_close(vector_of(posterior.mean), rows.mean(0))
    draws = vector_of(posterior.sample(DRAWS, seed=0), 1)
    # Resampling reproduces the empirical distribution: its mean and covariance, not the normal's.
    centred = rows - rows.mean(0)
    empirical = centred.T @ centred / len(rows)
    off = (draws.mean(0) - rows.mean(0)).abs() / (empirical.diagonal() / DRAWS).sqrt()
    assert off.max() < 5
    products = centred[:, :, None] * centred[:, None, :]
    seen = draws - rows.mean(0)
    error = (products.var(0) / DRAWS).sqrt()
    assert ((seen.T @ seen / DRAWS - empirical).abs() / error).max() < 5


def test_draw_k_of_stored_draws_is_the_kth():
    model = two_layers()
    rows = torch.arange(7 * SIZE, dtype=torch.float64).reshape(7, SIZE)
    posterior = posteriors.Samples(model, tree_of(model, rows))
    assert len(posterior) == 7
    assert torch.equal(vector_of(posterior.draw([5, 0], seed=123), 1), rows[[5, 0]])
    sample = vector_of(posterior.sample(100, seed=1), 1)
    assert torch.equal(vector_of(posterior.sample(30, seed=1), 1), sample[:30])


def test_no_stored_draw_is_an_error():
    model = two_layers()
    with pytest.raises(ValueError, match="no draw"):
        posteriors.Samples(model, tree_of(model, torch.zeros(0, SIZE, dtype=torch.float64)))


# --- mixtures ---


def a_mixture(model, weights=(0.2, 0.5, 0.3)):
    pieces, truth = [], []
    for i in range(3):
        mean, covariance = some_mean() * (i - 0.5), anisotropic_covariance(SIZE, 150.0, seed=10 + i) * (i + 1)
        pieces.append(posteriors.Full(model, tree_of(model, mean), covariance))
        truth.append((mean, covariance))
    return pl.mixture(pieces, weights=weights), truth, torch.tensor(weights, dtype=torch.float64)


def test_a_mixture_draws_the_moments_of_the_mixture():
    mixture, parts, weights = a_mixture(two_layers())
    mean = sum(w * m for w, (m, _) in zip(weights, parts, strict=True))
    covariance = sum(w * (c + torch.outer(m - mean, m - mean)) for w, (m, c) in zip(weights, parts, strict=True))
    draws = vector_of(mixture.sample(DRAWS, seed=2), 1)
    off = (draws.mean(0) - mean).abs() / (covariance.diagonal() / DRAWS).sqrt()
    assert off.max() < 5
    centred = draws - mean
    # Not normal, so the error of a covariance is estimated from the products themselves.
    seen = centred.T @ centred / DRAWS
    error = torch.stack([(centred * centred[:, [j]]).std(0) for j in range(SIZE)]) / math.sqrt(DRAWS)
    assert ((seen - covariance).abs() / error).max() < 5


def test_a_mixture_density_is_the_log_of_the_weighted_sum():
    model = two_layers()
    mixture, parts, weights = a_mixture(model)
    points = some_mean() * torch.tensor([[0.5], [0.0], [1.4]], dtype=torch.float64)
    each = torch.stack([MultivariateNormal(m, c).log_prob(points) for m, c in parts])
    expected = torch.logsumexp(each + weights.log()[:, None], 0)
    torch.testing.assert_close(mixture.log_prob(tree_of(model, points)), expected, rtol=1e-10, atol=1e-10)


def test_equal_weights_are_equal_to_the_last_bit_of_float64():
    model = two_layers()
    mixture = pl.mixture(a_mixture(model)[0].components)
    assert mixture.weights.sum().item() == pytest.approx(1.0, abs=1e-15)
    assert mixture.weights[0].item() == pytest.approx(1 / 3, abs=1e-15)


def test_draws_of_a_mixture_are_a_function_of_seed_and_number_alone():
    model = two_layers()
    gaussian, _, _ = a_mixture(model)
    stored = posteriors.Samples(model, tree_of(model, torch.arange(5 * SIZE, dtype=torch.float64).reshape(5, SIZE)))
    mixture = pl.mixture([gaussian, stored, posteriors.Delta(model, model.init())])
    many = vector_of(mixture.sample(40, seed=1), 1)
    torch.testing.assert_close(vector_of(mixture.sample(9, seed=1), 1), many[:9], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(vector_of(mixture.draw([33, 2], 1), 1), many[[33, 2]], rtol=1e-14, atol=1e-14)


def test_equal_components_are_drawn_apart():
    model = two_layers()
    piece = posteriors.Diagonal(model, model.init(), {k: torch.ones_like(w) for k, w in model.start.items()})
    draws = vector_of(pl.mixture([piece, piece]).sample(200, seed=0), 1)
    assert draws.unique(dim=0).shape[0] == 200


def test_the_mean_of_a_mixture_is_refused_and_its_components_named():
    mixture, _, _ = a_mixture(two_layers())
    with pytest.raises(pl.NotSupported, match="components"):
        _ = mixture.mean
    assert len(mixture.components) == 3


@pytest.mark.parametrize("weights", [(1.0, -1.0, 1.0), (1.0, 1.0), (0.0, 0.0, 0.0)])
def test_weights_that_are_no_weights_are_refused(weights):
    with pytest.raises(ValueError, match="non-negative weights"):
        pl.mixture(a_mixture(two_layers())[0].components, weights=weights)


def test_posteriors_of_different_models_do_not_mix():
    other = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal())
    model = two_layers()
    with pytest.raises(ValueError, match="one model"):
        pl.mixture([posteriors.Delta(model, model.init()), posteriors.Delta(other, other.init())])


def test_strata_share_draws_by_weight_and_every_component_has_one():
    mixture, _, _ = a_mixture(two_layers(), weights=(0.01, 0.66, 0.33))
    strata = mixture.strata(30, seed=0)
    counts = [len(s.indices) for s in strata]
    assert counts[0] == 1 and sum(counts) in (30, 31)
    assert counts[1] == pytest.approx(0.66 * 30, abs=1) and counts[2] == pytest.approx(0.33 * 30, abs=1)
    weights = [s.weight * len(s.indices) for s in strata]
    assert weights == pytest.approx([0.01, 0.66, 0.33])


def test_unconstrained_scales_are_among_the_unknowns_of_a_gaussian():
    model = pl.BayesianModel(nn.Linear(1, 1).double(), pl.likelihoods.Normal(scale="learn"))
    mean = {k: torch.zeros_like(w) for k, w in model.start.items()}
    posterior = posteriors.Diagonal(model, mean, {k: torch.full_like(w, 2.0) for k, w in mean.items()})
    expected = Normal(0.0, 2.0).log_prob(torch.tensor(0.7, dtype=torch.float64)) * 3
    value = posterior.log_prob({k: torch.full_like(w, 0.7) for k, w in mean.items()})
    torch.testing.assert_close(value, expected.double())
