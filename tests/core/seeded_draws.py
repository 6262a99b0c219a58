"""Outputs of a few draws for a few examples, and shares of the draws, by a seed."""

import torch

S, N = 7, 5


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(seed=1):
    weights = torch.rand(S, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return weights / weights.sum()
