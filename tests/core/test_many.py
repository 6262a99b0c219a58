"""Batches of several data sets at once."""

import pytest
import torch

import plausible as pl
from plausible.core import many
from plausible.core.data import make_source


def sources(seeds, *, size=21, batch_size=8, weights=None):
    """One made-up set for every seed."""
    model = pl.BayesianModel(torch.nn.Linear(3, 1), pl.likelihoods.Normal(), prior=pl.priors.Normal())
    made = []
    for number, seed in enumerate(seeds):
        rng = torch.Generator().manual_seed(number)
        data = torch.randn(size, 3, generator=rng), torch.randn(size, 1, generator=rng)
        own = data if weights is None else (*data, weights)
        made.append(make_source(model, own, batch_size=batch_size, seed=seed, device=torch.device("cpu")))
    return made


def assert_batches_are_stacked(found, parts, steps):
    for step in steps:
        for got, *expected in zip(found.batch(step), *(p.batch(step) for p in parts), strict=True):
            assert torch.equal(got, torch.stack(expected))


@pytest.mark.parametrize("seeds", [[1, 2, 3], [4, 4, 5], [6]], ids=["all differ", "two alike", "one"])
def test_one_gather_gives_the_batches_of_every_set(seeds):
    found = many.Stacked(sources(seeds))
    assert found._joined is not None
    # A ragged last batch, three epochs, and a jump back.
    assert_batches_are_stacked(found, sources(seeds), [0, 1, 2, 3, 4, 5, 8, 1])


def test_sets_with_weights_or_too_large_to_copy_are_stacked_one_by_one(monkeypatch):
    weights = torch.linspace(0.5, 1.5, 21)
    found = many.Stacked(sources([1, 2], weights=weights))
    assert found._joined is None
    assert_batches_are_stacked(found, sources([1, 2], weights=weights), range(4))
    monkeypatch.setattr(many, "JOINED", 2 * 21 * 4 * 4 - 1)  # two sets of 21 examples of four floats
    assert many.Stacked(sources([1, 2]))._joined is None
