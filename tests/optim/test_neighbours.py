"""Optimisers of two parts of one network."""

import pytest
import torch
from tests.optim.cases import CASES, data, make
from torch import nn

import plausible as pl

RANDOM = ["IVON", "NoisyKFAC", "SGHMC", "SGLD", "VOGN"]


def two_parts(name, seeds, apart=False, steps=3):
    torch.manual_seed(0)
    first, second = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    one, other = (make(name, m, seed=s) for m, s in zip((first, second), seeds, strict=True))
    x, y = data()
    for _ in range(steps):
        one.zero_grad(), other.zero_grad()
        with one.sampled(), other.sampled():
            if apart:
                (first(x) - y).square().mean().backward()
                (second(x) - y).square().mean().backward()
            else:
                (first(x) + second(x) - y).square().mean().backward()
        one.step(), other.step()
    return one, other


@pytest.mark.parametrize("name", RANDOM)
def test_parts_of_one_network_with_one_seed_are_warned_of_once(name, caplog):
    two_parts(name, (7, 7))
    (said,) = [r.getMessage() for r in caplog.records]
    assert f"{name} and {name} infer parts of one network with the same seed=7" in said
    assert "give one of them another seed" in said


@pytest.mark.parametrize("name", RANDOM)
def test_nothing_is_said_of_other_seeds_and_of_networks_that_have_nothing_to_do_with_each_other(name, caplog):
    two_parts(name, (0, 1))
    two_parts(name, (0, 0), apart=True)
    assert not caplog.records


@pytest.mark.parametrize("name", sorted(CASES.keys() - set(RANDOM)))
def test_what_draws_nothing_may_have_any_seed(name, caplog):
    two_parts(name, (0, 0))
    assert not caplog.records


def test_with_seeds_of_their_own_two_chains_have_the_covariance_of_the_posterior():
    """With one seed it has the wrong sign."""
    torch.manual_seed(0)
    n = 50
    x = torch.randn(n, 2, dtype=torch.float64)
    x[:, 1] = 0.5 * x[:, 0] + 0.9 * x[:, 1]
    y = x @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64) + torch.randn(n, 1, dtype=torch.float64)
    parts = [nn.Linear(1, 1, bias=False).double() for _ in range(2)]
    chains = [
        pl.optim.SGLD(m, num_data=n, lr=0.05, burn_in=500, max_draws=10**6, seed=s) for s, m in enumerate(parts)
    ]  # fmt: skip
    for _ in range(6000):
        for chain in chains:
            chain.zero_grad()
        (0.5 * (parts[0](x[:, :1]) + parts[1](x[:, 1:]) - y).square()).mean().backward()
        for chain in chains:
            chain.step()
    draws = [torch.stack(c.state[m.weight]["draws"]).flatten() for c, m in zip(chains, parts, strict=True)]
    truth = torch.linalg.inv(x.T @ x + torch.eye(2, dtype=torch.float64))
    found = torch.stack(draws).cov()
    # A step is .05 / 50 and the stiffer direction has a curvature of 86: an autocorrelation time of some 25 steps and a
    # discretisation of 4 %. 5,500 draws make an effective 220, whose covariance has a relative error of 10 %.
    assert float((found - truth).abs().max() / truth.abs().max()) < 0.3
    assert found[0, 1] < 0
