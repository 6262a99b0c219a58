"""A network that torch.compile runs takes the steps of the bare one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import plausible as pl


def stepped(name: str, how: str) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    run = network if how == "bare" else torch.compile(network, backend="aot_eager")
    optimizer = getattr(pl.optim, name)(run if how == "given compiled" else network, num_data=12)
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.sampled():
            F.cross_entropy(run(x), y).backward()
        optimizer.step()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    drawn = optimizer.posterior(model).sample(2, seed=0)
    return torch.cat([drawn[k].flatten() for k in sorted(drawn)])


@pytest.mark.parametrize("name", ["VOGN", "OGN", "IVON", "KFAC", "NoisyKFAC"])
@pytest.mark.parametrize("how", ["run compiled", "given compiled"])
def test_steps_and_answers_are_those_of_the_bare_network(name, how):
    torch.testing.assert_close(stepped(name, how), stepped(name, "bare"))
