"""The Gaussians that Laplace returns: draws, densities, files, mixtures, temperatures."""

from functools import cache

import pytest
import torch
from tests.inference.laplace.networks import (
    QUICK,
    STRUCTURES,
    class_model,
    classes,
    mlp,
    regression_model,
    sine,
    stated_covariance,
)
from tests.oracles import assert_moments, vector_of

import plausible as pl
from plausible.core.posteriors import LowRankPrecision

SUBSETS = ("all", "last-layer", ("0.bias", "2.weight"))


@cache
def trained(dtype=torch.float64):
    """Somewhere near the top, so that curvature and prior both matter."""
    return pl.fit(
        class_model(dtype), classes(dtype=dtype), pl.MAP(learning_rate=0.05), epochs=60, progress=False, compile=False
    )


@cache
def laplace(structure, subset="all", dtype=torch.float64):
    method = pl.Laplace(structure=structure, subset=subset, rank=5)
    return pl.fit(class_model(dtype), classes(dtype=dtype), method, **{**QUICK, "init": trained(dtype)})


def dense_precision(posterior, data) -> torch.Tensor:
    """Σᵢ Jᵢᵀ (diag p − p pᵀ) Jᵢ + I by brute force, over all weights in order."""
    x, _ = data
    network, mean = mlp(3), posterior.mean
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(network, w, x))(dict(mean))
    rows = torch.cat([j.flatten(2) for j in jacobian.values()], -1)
    probs = torch.func.functional_call(network, mean, x).softmax(-1)
    middle = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    return torch.einsum("nip,nij,njq->pq", rows, middle, rows) + torch.eye(rows.shape[-1], dtype=torch.float64)


def test_full_is_the_inverse_of_the_dense_curvature_and_the_prior():
    posterior = laplace("full")
    truth = dense_precision(posterior, classes()).inverse()
    torch.testing.assert_close(posterior.covariance, truth, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(stated_covariance(posterior), truth, rtol=1e-8, atol=1e-10)


def test_diagonal_inverts_the_diagonal_of_the_same_matrix():
    posterior = laplace("diagonal")
    truth = dense_precision(posterior, classes()).diagonal()
    torch.testing.assert_close(vector_of(posterior.scale), truth.rsqrt(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("rank", [1, 5, 27, 100])
def test_low_rank_keeps_the_largest_eigenvalues_of_the_same_matrix_and_the_prior_elsewhere(rank):
    method = pl.Laplace(structure="low-rank", rank=rank)
    posterior = pl.fit(class_model(), classes(), method, **{**QUICK, "init": trained()})
    values, vectors = torch.linalg.eigh(dense_precision(posterior, classes()))
    kept = torch.where(torch.arange(27) >= 27 - rank, values, 1.0)
    truth = (vectors / kept) @ vectors.T
    # Subspace iteration ends at a relative change of 1e-4 of the eigenvalues, so their vectors turn by a hundredth.
    tolerance = 1e-8 if rank >= 19 else 2e-2
    torch.testing.assert_close(stated_covariance(posterior), truth, rtol=0, atol=tolerance * truth.abs().max().item())


def test_kronecker_is_each_layers_product_of_factors_beside_the_prior():
    """By the formula: Σ a aᵀ ⊗ Σ g gᵀ / N for each layer, with a one appended to its inputs."""
    posterior = laplace("kronecker")
    (x, _), mean = classes(), posterior.mean
    hidden = torch.tanh(x @ mean["0.weight"].T + mean["0.bias"])
    probs = (hidden @ mean["2.weight"].T + mean["2.bias"]).softmax(-1)
    middle = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    back = mean["2.weight"].T.unsqueeze(0) * (1 - hidden**2).unsqueeze(-1)  # (N, hidden, classes)
    sides = {
        "2": (hidden, middle.sum(0)),
        "0": (x, torch.einsum("nhi,nij,nkj->hk", back, middle, back)),
    }
    covariance = stated_covariance(posterior)
    places = {"0": (0, 8, 4, 2), "2": (12, 24, 3, 4)}  # where weight and bias begin, rows, columns
    for layer, (inputs, output_factor) in sides.items():
        a = torch.cat([inputs, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        precision = torch.kron(output_factor, a.T @ a / len(x)) + torch.eye(len(output_factor) * a.shape[1]).double()
        weight, bias, rows, columns = places[layer]
        order = [weight + r * columns + c if c < columns else bias + r for r in range(rows) for c in range(columns + 1)]
        torch.testing.assert_close(covariance[order][:, order], precision.inverse(), rtol=1e-7, atol=1e-9)


# --- draws and densities ---


@pytest.mark.parametrize("structure", STRUCTURES)
def test_draws_have_the_stated_covariance(structure):
    """200,000 draws; the data decide some directions a hundred times as sharply as the prior."""
    model = regression_model(likelihood=pl.likelihoods.Normal(scale=0.02), prior=pl.priors.Normal(scale=3.0))
    posterior = pl.fit(model, sine(6), pl.Laplace(structure=structure, rank=6), **QUICK)
    covariance = stated_covariance(posterior)
    assert torch.linalg.cond(covariance) >= 100
    draws = vector_of(posterior.sample(200_000, seed=1), 1)
    assert_moments(draws, vector_of(posterior.mean), covariance)


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_density_is_that_of_the_stated_normal(structure, subset):
    posterior = laplace(structure, subset)
    truth = torch.distributions.MultivariateNormal(vector_of(posterior.free), stated_covariance(posterior))
    draws = posterior.sample(6, seed=2)
    expected = truth.log_prob(vector_of({k: draws[k] for k in posterior.free}, 1))
    torch.testing.assert_close(posterior.log_prob(draws), expected, rtol=1e-8, atol=1e-8)
    one = {k: v[0] for k, v in draws.items()}
    assert float(posterior.log_prob(one)) == pytest.approx(float(expected[0]), abs=1e-8)


def test_a_low_rank_precision_of_its_own_has_the_density_and_the_draws_of_its_formula():
    model, rng = regression_model(), torch.Generator().manual_seed(3)
    mean = model.init()
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    precision = {k: draw(*w.shape).exp() for k, w in mean.items()}
    directions = torch.linalg.qr(draw(17, 3)).Q.T
    split = dict(zip(mean, directions.split([w.numel() for w in mean.values()], 1), strict=True))
    curvature = torch.tensor([1e4, 30.0, 0.5], dtype=torch.float64)
    posterior = LowRankPrecision(
        model, mean, precision, {k: v.reshape(3, *mean[k].shape) for k, v in split.items()}, curvature
    )
    root = vector_of(precision).sqrt()
    inner = torch.eye(17, dtype=torch.float64) + directions.T @ torch.diag(curvature) @ directions
    truth = torch.distributions.MultivariateNormal(
        vector_of(mean), precision_matrix=root.unsqueeze(1) * inner * root.unsqueeze(0)
    )
    draws = posterior.sample(200_000, seed=0)
    assert_moments(vector_of(draws, 1), vector_of(mean), truth.covariance_matrix)
    few = {k: v[:5] for k, v in draws.items()}
    torch.testing.assert_close(posterior.log_prob(few), truth.log_prob(vector_of(few, 1)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_is_not_in_the_subset_does_not_vary(structure):
    posterior = laplace(structure, ("0.bias", "2.weight"))
    draws = posterior.sample(5, seed=0)
    for name, w in posterior.mean.items():
        varies = bool((draws[name] != w).any())
        assert varies == (name in ("0.bias", "2.weight"))
    assert posterior.predict(classes()[0]).probs.shape == (40, 3)


# --- files ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_file_gives_back_the_same_bits(structure, subset, dtype, tmp_path):
    posterior = laplace(structure, subset, dtype)
    posterior.save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", mlp(3, dtype))
    assert type(loaded) is type(posterior) and loaded.linearised_by_default
    x = classes(dtype=dtype)[0]
    for linearised in (None, False):
        mine, theirs = (p.predict(x, num_samples=7, linearised=linearised).outputs for p in (posterior, loaded))
        assert torch.equal(mine, theirs)
    assert loaded.free.keys() == posterior.free.keys()
    assert torch.equal(loaded.log_prob(loaded.mean), posterior.log_prob(posterior.mean))
    assert torch.equal(loaded.evidence().log_marginal_likelihood, posterior.evidence().log_marginal_likelihood)
    assert loaded.diagnostics().messages == posterior.diagnostics().messages


def test_predictions_are_linearised_unless_told_otherwise():
    posterior = laplace("full")
    x = 3 * classes()[0]
    default, linear, sampled = (posterior.predict(x, linearised=how).outputs for how in (None, True, False))
    assert torch.equal(default, linear) and not torch.equal(default, sampled)


# --- several modes ---


def test_several_modes_are_a_mixture_of_laplaces(tmp_path):
    method = pl.Laplace(structure="full", base=pl.MAP(learning_rate=0.05))
    posterior = pl.fit(class_model(), classes(), method, num_modes=3, epochs=200, progress=False)
    assert isinstance(posterior, pl.posteriors.Mixture) and len(posterior.components) == 3
    means = [vector_of(c.mean) for c in posterior.components]
    assert min((a - b).norm() for i, a in enumerate(means) for b in means[:i]) > 1e-3
    for c in posterior.components:
        truth = dense_precision(c, classes()).inverse()
        torch.testing.assert_close(c.covariance, truth, rtol=1e-7, atol=1e-9)
        assert torch.isfinite(c.evidence().log_marginal_likelihood)
    x = classes()[0]
    assert posterior.predict(x).probs.shape == (40, 3)
    posterior.save(tmp_path / "m.plausible")
    assert torch.equal(pl.load(tmp_path / "m.plausible", mlp(3)).predict(x).probs, posterior.predict(x).probs)
