"""Draws that see one part of a batch each."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import plausible as pl
from plausible.core.model import InternalBatch
from plausible.inference.natural_gradient.example_moments import mean_moments
from plausible.inference.natural_gradient.gaussian_prior import GaussianPrior

NUM_DATA = 50.0


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def model():
    return pl.BayesianModel(network(), pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=0.5)).bound(
        num_data=NUM_DATA
    )


def batch(real=10, size=11):
    """The last examples are there for the shape alone, as at the end of a pass."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(size, 2, generator=rng, dtype=torch.float64), torch.randint(0, 3, (size,), generator=rng)
    weights = torch.zeros(size, dtype=torch.float64)
    weights[:real] = NUM_DATA / real
    return InternalBatch((x, y, weights))


def drawn(count):
    rng = torch.Generator().manual_seed(2)
    start = model().start
    return [{k: w + torch.randn(w.shape, generator=rng, dtype=w.dtype) for k, w in start.items()} for _ in range(count)]


def example_gradients(point, x, y):
    plain = network()

    def loss(params, one, label):
        return nn.functional.cross_entropy(functional_call(plain, params, (one[None],)), label[None])

    return vmap(grad(loss), (None, 0, 0))(point, x, y)


@pytest.mark.parametrize(("samples", "parts"), [(1, 4), (3, 2)])
def test_every_example_is_seen_under_the_draws_of_its_part_alone(samples, parts):
    bound, (x, y, weights) = model(), batch()
    draws = drawn(samples * parts)
    _, gradient, squares = mean_moments(bound, draws, batch(), GaussianPrior.of(bound, bound.start), parts)
    first = {k: torch.zeros_like(w) for k, w in bound.start.items()}
    second = {k: torch.zeros_like(w) for k, w in bound.start.items()}
    for place, point in enumerate(draws):
        found = example_gradients(point, x, y)
        for i in range(place % parts, len(x), parts):
            share = weights[i] / NUM_DATA / samples
            for k in first:
                first[k] += share * found[k][i]
                second[k] += share * found[k][i] ** 2
    for k in first:
        torch.testing.assert_close(gradient[k], first[k], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(squares[k], second[k], rtol=1e-10, atol=1e-12)


def test_parts_under_one_draw_give_what_the_whole_batch_gives():
    bound, (point,) = model(), drawn(1)
    prior = GaussianPrior.of(bound, bound.start)
    whole, split = (mean_moments(bound, [point] * p, batch(), prior, p) for p in (1, 4))
    torch.testing.assert_close(split[0], whole[0], rtol=1e-10, atol=0)
    for a, b in zip(split[1:], whole[1:], strict=True):
        for k in a:
            torch.testing.assert_close(a[k], b[k], rtol=1e-10, atol=1e-12)


def test_there_are_no_more_parts_than_examples():
    with pytest.raises(ValueError, match="num_parts must be at most the 4 examples of a batch, got 5"):
        pl.fit(model(), batch()[:2], pl.VOGN(num_parts=5), steps=1, batch_size=4, progress=False)
