"""The exact law of linear recursions: what a sampler of finite steps has as its stationary covariance on a normal target."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

import plausible as pl


def sgld_covariance(precision: Tensor, step_size: float) -> Tensor:
    """Of w ← (I − ε A) w + √(2ε) ξ."""
    matrix = np.eye(len(precision)) - step_size * precision.numpy()
    return torch.from_numpy(solve_discrete_lyapunov(matrix, 2 * step_size * np.eye(len(precision))))


def sghmc_covariance(precision: Tensor, step_size: float, friction: float) -> Tensor:
    """Of (w, p): p ← (1 − D h) p − h A w + √(2 D h) ξ, then w ← w + h p with the new p."""
    a, eye, h = precision.numpy(), np.eye(len(precision)), step_size
    left = 1 - friction * h
    matrix = np.block([[eye - h * h * a, h * left * eye], [-h * a, left * eye]])
    push = np.vstack([h * eye, eye])
    return torch.from_numpy(solve_discrete_lyapunov(matrix, 2 * friction * h * push @ push.T))


def normal_target(mean: Tensor, covariance: Tensor, temperature: float = 1.0, chains: int = 1000) -> pl.LogDensity:
    """Independent w ~ N(mean, T · covariance), one in every row: as many chains for the price of one.

    In two tensors, so that the correlation also runs between names. Starts are scattered about the mean.
    """
    precision, half = torch.linalg.inv(covariance), len(mean) // 2

    def log_prob(p: dict[str, Tensor]) -> Tensor:
        z = torch.cat([p["a"], p["b"]], 1) - mean
        return -0.5 * ((z @ precision) * z).sum() / temperature

    start = mean.expand(chains, -1)
    return pl.LogDensity(log_prob, {"a": start[:, :half].clone(), "b": start[:, half:].clone()})


def chains_of(posterior: pl.Posterior) -> Tensor:
    """(C, K, P) of all unknowns."""
    return torch.cat([posterior.draws["a"], posterior.draws["b"]], -1).movedim(0, 1)
