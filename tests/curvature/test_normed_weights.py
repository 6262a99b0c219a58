"""Weights that are normed by what a layer works out of them without gradients, as spectral norm does, and keeps."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import plausible as pl
from plausible.curvature import second_moments

N = 5


def old(norm, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return norm(layer)


class Scaled(nn.Module):
    """Divides data by what a weight gives without gradients: no use of that weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        with torch.no_grad():
            size = self.weight.norm()
        return x * self.weight / size


NETWORKS = {
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3)),
    "spectral norm of a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), parametrizations.spectral_norm(nn.Conv1d(2, 4, 2)), nn.Flatten(), nn.Linear(8, 3)
    ),
    "a norm without gradients": lambda: nn.Sequential(Scaled(), nn.Linear(6, 3)),
}
LEGACY = {
    "the old spectral norm": lambda: nn.Sequential(old(spectral_norm, nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3)),
    "the old weight norm": lambda: nn.Sequential(old(weight_norm, nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3)),
}
BOTH = {**NETWORKS, **LEGACY}


def made(name):
    torch.manual_seed(0)
    return BOTH[name]().double(), torch.randn(N, 6, dtype=torch.float64), torch.randint(3, (N,))


def squares(name):
    """Σᵢ gᵢ² / N, each of a pass through a network that was never run before: a pass moves what is kept."""
    found = {}
    for i in range(N):
        network, x, y = made(name)
        nn.functional.cross_entropy(network(x[i : i + 1]), y[i : i + 1]).backward()
        for k, p in network.named_parameters():
            found[k] = found.get(k, 0.0) + p.grad**2 / N
    return found


@pytest.mark.parametrize("name", BOTH)
def test_an_optimiser_has_the_squares_of_one_example_after_the_other(name):
    network, x, y = made(name)
    optimizer = pl.optim.OGN(network, num_data=N)
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
    for k, v in squares(name).items():
        found = optimizer.state[optimizer.weights()[k]]["curvature"]
        torch.testing.assert_close(found, v, rtol=1e-9, atol=1e-14, msg=lambda m, k=k: f"{k}: {m}")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("method", ["KFAC", "NoisyKFAC", "OGN", "VOGN"])
def test_every_optimiser_takes_steps(name, method):
    network, x, y = made(name)
    optimizer = getattr(pl.optim, method)(network, num_data=N)
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.sampled():
            nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", ["KFAC", "NoisyKFAC", "OGN", "VOGN"])
def test_fit_takes_such_a_network(name, method):
    network, x, y = made(name)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior = pl.fit(model, (x, y), getattr(pl, method)(), steps=3, batch_size=N)
    assert posterior.predict(x).probs.isfinite().all()


def test_a_plan_leaves_what_a_layer_keeps_as_it_was():
    network, x, y = made("spectral norm")
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(training=True, num_data=float(N))
    module = model.network.module(torch.device("cpu"), "train")
    before = {k: v.clone() for k, v in module.named_buffers()}
    from plausible.curvature.tracing import plan_for

    plan_for(model, model.init(), x, tuple(model.weight_names))
    for k, v in module.named_buffers():
        assert torch.equal(v, before[k]), k


def test_in_eval_mode_curvature_is_that_of_one_example_after_the_other():
    network, x, y = made("spectral norm")
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(num_data=float(N))
    found = second_moments(model, model.init(), (x, y, torch.ones(N, dtype=torch.float64)))
    expected, own = {}, copy.deepcopy(network).eval()
    for i in range(N):
        own.zero_grad()
        nn.functional.cross_entropy(own(x[i : i + 1]), y[i : i + 1]).backward()
        for k, p in own.named_parameters():
            expected[k] = expected.get(k, 0.0) + p.grad**2
    for k, v in expected.items():
        torch.testing.assert_close(found[k], v, rtol=1e-9, atol=1e-14)
