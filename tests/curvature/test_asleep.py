"""Layers that do nothing on the few examples of a plan, and something on others."""

import pytest
import torch
from tests.curvature.brute_force import flat, gap
from torch import nn

import plausible as pl
from plausible.curvature import Curvature


def in_both_orders(network, x, y, kind):
    """The diagonal for data as they are and from their end, with a plan of its own for each."""
    for order in (slice(None), torch.arange(len(x) - 1, -1, -1)):
        model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
        yield Curvature(model, model.init(), (x[order], y[order], None), kind).diagonal()


@pytest.mark.parametrize("kind", ["ggn", "empirical-fisher"])
def test_a_layer_that_is_dead_on_the_first_examples_has_a_curvature(kind):
    """A plan is made on three examples, here ones that no ReLU lets through."""
    network = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0], [0.7]]))
        network[0].bias.copy_(torch.tensor([0.1, -0.2]))
    x = torch.linspace(-3, 3, 60).double().unsqueeze(1)
    found, turned = in_both_orders(network, x, x.relu() + 0.3, kind)
    assert found["0.weight"].min() > 0
    assert gap(flat(found), flat(turned)) < 1e-8


class Gated(nn.Module):
    """Which branch an example takes depends on nothing but itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 2).double(), nn.Linear(1, 2).double()

    def forward(self, x):
        return torch.where(x > 0, self.first(x), self.second(x))


@pytest.mark.parametrize("kind", ["ggn", "empirical-fisher"])
def test_a_use_that_no_shaking_wakes_has_a_curvature(kind):
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 60).double().unsqueeze(1)
    found, turned = in_both_orders(Gated(), x, torch.cat([x, x], 1), kind)
    assert all(v.min() > 0 for v in found.values())
    assert gap(flat(found), flat(turned)) < 1e-8
