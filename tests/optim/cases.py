"""Every optimiser with numbers under which it moves in a few steps, a network, data, and the loops that users write."""

import pytest
import torch
from torch import Tensor, nn

import plausible as pl

CASES = {
    "IVON": (pl.optim.IVON, {"lr": 0.1, "betas": (0.9, 0.99), "hess_init": 0.1}),
    "KFAC": (pl.optim.KFAC, {"lr": 0.1, "update_every": 2, "trust": 0.01}),
    "NoisyKFAC": (pl.optim.NoisyKFAC, {"lr": 0.1, "update_every": 2}),
    "OGN": (pl.optim.OGN, {"lr": 0.01, "betas": (0.9, 0.9), "damping": 0.0}),
    "SGHMC": (pl.optim.SGHMC, {"lr": 0.01}),
    "SGLD": (pl.optim.SGLD, {"lr": 0.01}),
    "VOGN": (pl.optim.VOGN, {"lr": 0.01, "betas": (0.9, 0.9)}),
}
SAMPLING = ["IVON", "NoisyKFAC", "VOGN"]  # gradients at draws around a mean
every = pytest.mark.parametrize("name", CASES)
sampling = pytest.mark.parametrize("name", SAMPLING)
N, NOISE = 24, 0.5


def make(name: str, network: nn.Module, **numbers) -> pl.optim.BayesianOptimizer:
    constructor, own = CASES[name]
    return constructor(network, num_data=N, **{**own, **numbers})


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)


def data(dtype: torch.dtype = torch.float64, n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = (x.sum(1, keepdim=True)).sin() + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def losses(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Negative log likelihoods of `model`, up to a constant."""
    return 0.5 * ((network(x) - y) ** 2).sum(1) / NOISE**2


def model(network: nn.Module, **others) -> pl.BayesianModel:
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=NOISE), **others)


def loop(optimizer, x: Tensor, y: Tensor, steps: int = 5, reduction: str = "mean") -> None:
    """The plain loop, with a draw for every step."""
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled():
            getattr(losses(optimizer.network, x, y), reduction)().backward()
        optimizer.step()


def stepped(name: str, network: nn.Module | None = None, **numbers) -> pl.optim.BayesianOptimizer:
    """An optimiser that has a curvature to draw with."""
    optimizer = make(name, network or mlp(), **numbers)
    loop(optimizer, *data(), steps=1)
    return optimizer


def closure_loop(optimizer, x: Tensor, y: Tensor, steps: int = 5) -> None:
    def closure():
        optimizer.zero_grad()
        loss = losses(optimizer.network, x, y).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def bare_loop(optimizer, x: Tensor, y: Tensor, steps: int = 5) -> None:
    """A loop that knows nothing of draws."""
    optimizer.train()
    for _ in range(steps):
        optimizer.zero_grad()
        losses(optimizer.network, x, y).mean().backward()
        optimizer.step()
    optimizer.eval()


LOOPS = {"sampled": loop, "closure": closure_loop, "train and eval": bare_loop}


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in network.named_parameters()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for k, v in expected.items():
        assert torch.equal(found[k], v), k


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for k, v in expected.items():
        torch.testing.assert_close(found[k], v, rtol=tolerance, atol=tolerance, msg=lambda m, k=k: f"{k}: {m}")
