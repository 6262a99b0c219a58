"""What looks at batches of different sizes add up to, and how many of them count."""

import math

import pytest
import torch
from tests.inference.natural_gradient.kronecker_cases import dense_covariance, fit
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plausible as pl
from plausible.core import places
from plausible.inference.natural_gradient.kronecker_method import _averaged_looks
from plausible.weights.rng import Keys, run_key

NOISE = 0.5
STILL = pl.KFAC(learning_rate=1e-14, damping=0.0, curvature_decay=0.999, update_every=1)


def line(size, seed=2):
    """A regression on three inputs, whose Kronecker factors are exact and do not depend on the weights."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=rng).double()
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + NOISE * torch.randn(size, 1, generator=rng).double()
    torch.manual_seed(0)
    return pl.BayesianModel(nn.Linear(3, 1, bias=False).double(), pl.likelihoods.Normal(scale=NOISE)), x, y


def deviations_beside_exact(posterior, x):
    exact = torch.linalg.inv(x.T @ x / NOISE**2 + torch.eye(3).double()).diagonal().sqrt()
    return dense_covariance(posterior).diagonal().sqrt() / exact


@pytest.mark.parametrize("method", [pl.KFAC(), pl.NoisyKFAC()])
@pytest.mark.parametrize(
    ("size", "epochs"), [(128, 1), (129, 1), (129, 3), (129, 10), (130, 1), (257, 1), (257, 3), (257, 10)]
)
def test_deviations_are_those_of_exact_bayes_however_few_examples_the_last_batch_has(method, size, epochs):
    model, x, y = line(size)
    found = deviations_beside_exact(fit(model, (x, y), method, epochs=epochs, batch_size=128), x)
    # Looks cover each example about as often as any other; what is left is that of 129 examples one counts twice or not.
    torch.testing.assert_close(found, torch.ones(3).double(), rtol=0.03, atol=0.0)


def test_looks_at_single_examples_are_averaged_until_they_say_enough():
    model, x, y = line(37)
    found = deviations_beside_exact(fit(model, (x, y), pl.KFAC(), steps=3000, batch_size=1), x)
    # Two fifths of 310 looks in a moving average are worth 248 draws of squares of normals, three times as spread as their mean.
    torch.testing.assert_close(found, torch.ones(3).double(), rtol=4 * math.sqrt(2 / 248) / 2, atol=0.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_an_epoch_of_batches_is_the_curvature_of_all_data_whatever_the_last_one_has(weighted, loaded):
    model, x, y = line(56)
    own = 0.5 + torch.rand(56, generator=torch.Generator().manual_seed(4)).double() if weighted else torch.ones(56)
    data = (x, y, own.double()) if weighted else (x, y)
    laplace = fit(model, data, pl.Laplace(), init="network", epochs=0)
    batches = DataLoader(TensorDataset(*data), batch_size=9) if loaded else data  # the seventh has two
    given = {"num_data": float(own.sum())} if weighted else {}
    found = fit(model, batches, STILL, steps=7, batch_size=9, **given)
    torch.testing.assert_close(dense_covariance(found), dense_covariance(laplace), rtol=1e-8, atol=1e-12)


def test_examples_without_a_say_are_places_that_are_filled():
    """Their batch is no smaller for it: it stands for its share of the examples, and says that little is there."""
    model, x, y = line(56)
    own = torch.rand(56, generator=torch.Generator().manual_seed(4)).double() * (torch.arange(56) % 3 == 0)
    laplace = fit(model, (x, y, own), pl.Laplace(), init="network", epochs=0)
    found = fit(model, (x, y, own), STILL, steps=7, batch_size=9)
    torch.testing.assert_close(dense_covariance(found), dense_covariance(laplace), rtol=1e-8, atol=1e-12)


def test_places_of_a_loaders_batches_are_filled_up_to_the_last_that_has_a_say():
    """Its weights are the user's own, so that examples without a say among others count as places."""
    weights = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    batch = pl.core.model.InternalBatch((torch.zeros(8, 1), torch.zeros(8, 1), weights))
    assert float(places.filled(object(), 0, batch)) == 6 / 8
    assert float(places.filled(object(), 0, pl.core.model.InternalBatch((*batch[:2], 0 * weights)))) == 0.0


def test_one_example_neither_confirms_nor_refutes_the_curvature_that_steps_go_by():
    model, x, y = line(8)
    bound = model.bound(num_data=8.0, num_steps=100, steps_per_epoch=2)
    method = pl.KFAC().resolved(bound, 100)
    inputs = x.clone()
    inputs[0] *= 1000
    bound = bound.bound(training=False, example=x[:1])
    rng = Keys(run_key(0, 0), torch.zeros((), dtype=torch.int64))
    batch = pl.core.model.InternalBatch((x, y, torch.ones(8).double()))
    wild = pl.core.model.InternalBatch((inputs, y, torch.ones(8).double()))

    def trusted(second, filled):
        state = method.init(bound, {k: w.clone() for k, w in model.start.items()})
        state = method.probe(bound, state, batch, rng)
        before = dict(state["trusted"])
        state["params"] = {k: w + 1.0 for k, w in state["params"].items()}
        share = torch.tensor(filled, dtype=torch.float64)
        return before, method.probe(bound.bound(filled=share), state, second, rng)["trusted"]

    for filled, alike in ((1 / 8, True), (1.0, False)):
        before, after = trusted(wild, filled)
        assert torch.equal(before["seen_at"]["weight"], after["seen_at"]["weight"]) == alike


@pytest.mark.parametrize(
    ("looks", "size", "batches", "expected"),
    [
        (1, 100, 1, 1.0),  # all data at once
        (5, 100, 1, 1.0),
        (3, 300, 3, 3.0),  # an epoch of a short run
        (60, 12_800, 100, 12.0),  # a fifth of a run
        (1000, 12_800, 100, 20.0),
        (310, 37, 37, 124.0),  # single examples
        (10_000, 37, 37, 144.0),
    ],
)
def test_as_many_looks_count_as_a_run_and_its_batches_ask_for(looks, size, batches, expected):
    assert _averaged_looks(looks, size, batches) == pytest.approx(expected)
