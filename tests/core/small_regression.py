"""A network with two outputs, and data for it."""

import torch
from torch import nn

N = 23


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def data(n=N, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=rng, dtype=torch.float64)
    return x, torch.randn(n, 2, generator=rng, dtype=torch.float64)
