"""Passes that run together are passes that run alone, and what is before the first mask runs once."""

from __future__ import annotations

import pytest
import torch
from tests.weights.watched_networks import NETWORKS
from torch import nn

import plausible as pl
from plausible.core.dropout_run import EARLY, LATE, ONE_BY_ONE, DropoutRun
from plausible.core.posteriors import Dropout


class Watched(nn.Module):
    """Notes how many rows come by."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        self.rows.append(x.shape[0])
        return x


class Skip(nn.Module):
    """What is before the first mask is needed after it."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x + self.into(x).tanh())


class TimeFirst(nn.Module):
    """Positions lie before examples, flattened, where the first mask is; a silent reshape would mix them up."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        flat = x.transpose(0, 1).flatten(0, 1)
        return self.out(self.into(flat).tanh().unflatten(0, (x.shape[1], -1)).cumsum(0)[-1])


class Mixing(nn.Module):
    """An example's output depends on the others'."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x - x[:1] * x.shape[0])


def run_of(network, rate=0.4):
    torch.manual_seed(0)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    names = [k for k in model.weight_names if model.start[k].dim() > 1]
    posterior = Dropout(model, model.start, dict.fromkeys(names, rate))
    posterior.mean_bank = {k: model.network.buffers[k] for k in model.network.statistics} or None
    return DropoutRun(posterior.strata(4, 0)[0])


CASES = {
    "a chain": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (5, 3), LATE),
    "convolutions": (NETWORKS["convolutions"][0], (5, 1, 4, 4), LATE),
    "flattened positions": (
        lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 1), nn.Unflatten(0, (-1, 2)), nn.Flatten()), (5, 2, 3), LATE
    ),
    "a skip connection": (Skip, (5, 3), EARLY),
    "positions first": (TimeFirst, (5, 4, 2), EARLY),
    "attention": (NETWORKS["attention"][0], (5, 3, 4), EARLY),
    "recurrent layer": (NETWORKS["recurrent layer"][0], (5, 5, 3), EARLY),
    "mixing": (Mixing, (5, 3), ONE_BY_ONE),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_the_way_is_found_and_its_law_is_that_of_passes_one_by_one(kind):
    make, shape, way = CASES[kind]
    run, x = run_of(make()), torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    count, few = 3000, 300
    with torch.no_grad():
        assert run._find_way(x) == way
        first = run._pass(x, 1, EARLY)
        together = first.new_empty(count, *first.shape)
        torch.manual_seed(5)
        run.forward({}, 0, count, x, together)
        run._way = ONE_BY_ONE
        apart = first.new_empty(few, *first.shape)
        run.forward({}, 0, few, x, apart)
    error = (together.var(0) / count + apart.var(0) / few).sqrt()
    assert bool(((together.mean(0) - apart.mean(0)).abs() < 5 * error + 1e-6).all())
    torch.testing.assert_close(together.std(0), apart.std(0), rtol=0.25, atol=1e-6)


def test_both_ways_of_repeating_give_the_same_numbers_for_the_same_coins():
    run, x = run_of(NETWORKS["convolutions"][0]()), torch.randn(5, 1, 4, 4)
    found = []
    for way in (EARLY, LATE):
        torch.manual_seed(3)
        found.append(run._pass(x, 6, way))
    torch.testing.assert_close(found[0], found[1])


def test_what_is_before_the_first_mask_runs_once():
    before, after = Watched(), Watched()
    network = nn.Sequential(
        nn.Conv2d(1, 2, 2), before, nn.ReLU(), nn.Flatten(), nn.Linear(18, 3), after, nn.Linear(3, 1)
    )
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    posterior = Dropout(model, model.start, {"4.weight": 0.2, "6.weight": 0.2})
    posterior.predict(torch.randn(6, 1, 4, 4), num_samples=50)
    assert before.rows[-1] == 6 and after.rows[-1] == 300


def test_little_memory_means_small_blocks_and_the_same_law():
    network = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    posterior, x = Dropout(model, model.start, {"2.weight": 0.3}), torch.randn(4, 3)
    wide = posterior.predict(x, num_samples=2000).outputs
    narrow = posterior.predict(x, num_samples=2000, memory=100_000).outputs
    torch.testing.assert_close(wide.std(0), narrow.std(0), rtol=0.15, atol=0)
    assert bool(((wide.mean(0) - narrow.mean(0)).abs() < 5 * (wide.var(0) / 1000).sqrt()).all())


def test_unknown_noise_comes_along():
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=pl.hyperpriors.LogNormal(0.0, 1.0)))
    posterior = Dropout(model, model.start, {"weight": 0.3})
    predictive = posterior.predict(torch.ones(3, 2), num_samples=7)
    assert predictive.outputs.shape == (7, 3, 1)
    assert bool(torch.isfinite(predictive.log_prob(torch.ones(3, 1))).all())
