"""Weights in half precision: what is averaged over many steps is not."""

import copy

import pytest
import torch
from tests.optim.cases import CASES
from torch import nn

import plausible as pl

N, STEPS = 400, 1500
SLOW = {  # averages that a step changes by less than bfloat16 can tell
    "IVON": {"lr": 0.1, "betas": (0.9, 0.998)},
    "VOGN": {"lr": 0.01, "betas": (0.9, 0.997)},
    "OGN": {"lr": 0.01, "betas": (0.9, 0.997)},
}


def trained(name, dtype, steps=STEPS):
    torch.manual_seed(0)
    x = torch.randn(N, 6)
    y = ((x @ torch.randn(6, 1))[:, 0] > 0).long()
    torch.manual_seed(1)
    network = nn.Linear(6, 2).to(dtype)
    optimizer = CASES[name][0](network, num_data=N, **SLOW[name])
    g = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(N, (64,), generator=g)
        optimizer.zero_grad()
        with optimizer.sampled():
            nn.functional.cross_entropy(network(x[rows].to(dtype)).float(), y[rows]).backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", SLOW)
def test_deviations_are_those_of_float32(name):
    wide, narrow = (trained(name, dtype) for dtype in (torch.float32, torch.bfloat16))
    for k, scale in wide.scales().items():
        found = narrow.scales()[k]
        assert found.dtype == torch.bfloat16
        # Means in bfloat16 stand still where a step is less than 1/256 of them, and what is seen there is a little other.
        torch.testing.assert_close(found.float(), scale, rtol=0.15, atol=0.0)


@pytest.mark.parametrize("name", SLOW)
def test_a_state_goes_on_to_the_bit(name):
    optimizer = trained(name, torch.bfloat16, steps=20)
    saved = copy.deepcopy(optimizer.state_dict())
    other = CASES[name][0](copy.deepcopy(optimizer.network), num_data=N, **SLOW[name])
    other.load_state_dict(saved)
    for p, q in zip(optimizer.weights().values(), other.weights().values(), strict=True):
        for what, value in optimizer.state[p].items():
            assert torch.equal(value, other.state[q][what])
            assert value.dtype == other.state[q][what].dtype == torch.float32


@pytest.mark.parametrize("name", SLOW)
def test_a_posterior_has_the_type_of_the_network(name):
    optimizer = trained(name, torch.bfloat16, steps=5)
    posterior = optimizer.posterior(pl.BayesianModel(optimizer.network, pl.likelihoods.Categorical()))
    assert all(v.dtype == torch.bfloat16 for v in posterior.sample(3, seed=0).values())
    assert posterior.predict(torch.randn(4, 6).bfloat16()).probs.shape == (4, 2)
