"""Small networks and data that the tests of Laplace share."""

import torch
from torch import nn

import plausible as pl

STRUCTURES = ("diagonal", "kronecker", "low-rank", "full")
QUICK = {"init": "network", "epochs": 0, "progress": False}


def mlp(outputs: int = 1, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).to(dtype)


def sine(n: int = 40, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=rng, dtype=torch.float64)
    return x.to(dtype), (x[:, :1].sin() + 0.2 * torch.randn(n, 1, generator=rng, dtype=torch.float64)).to(dtype)


def classes(n: int = 40, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.0, 1.5], [1.5, -1.0], [-1.5, -1.0]], dtype=torch.float64)
    return (centres[y] + torch.randn(n, 2, generator=rng, dtype=torch.float64)).to(dtype), y


def regression_model(dtype: torch.dtype = torch.float64, likelihood=None, **settings) -> pl.BayesianModel:
    return pl.BayesianModel(mlp(dtype=dtype), likelihood or pl.likelihoods.Normal(scale=0.2), **settings)


def class_model(dtype: torch.dtype = torch.float64, **settings) -> pl.BayesianModel:
    return pl.BayesianModel(mlp(3, dtype), pl.likelihoods.Categorical(), **settings)


def stated_covariance(posterior) -> torch.Tensor:
    """L Lᵀ, from what a Gaussian says of its own root."""
    size = sum(w.numel() for w in posterior.free.values())
    rows = posterior.unscatter(torch.eye(size, dtype=next(iter(posterior.free.values())).dtype))
    return rows @ rows.T
