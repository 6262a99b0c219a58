"""Priors with unknown scales of every kind, and a small model to give them to."""

import torch
from torch import nn

import plausible as pl

Hierarchical, Horseshoe = pl.priors.Hierarchical, pl.priors.Horseshoe
HalfNormal, InverseGamma, LogNormal = pl.hyperpriors.HalfNormal, pl.hyperpriors.InverseGamma, pl.hyperpriors.LogNormal
PRIORS = {
    "layer": Hierarchical(),
    "network-laplace": Hierarchical(family=pl.priors.Laplace, hyperprior=InverseGamma(2.0, 0.5), per="network"),
    "unit-student": Hierarchical(family=pl.priors.StudentT(df=3.0), hyperprior=LogNormal(-1.0, 0.5), per="unit"),
    "input-cauchy": Hierarchical(family=pl.priors.Cauchy, hyperprior=HalfNormal(2.0), per="input"),
    "fan-in": Hierarchical(family=pl.priors.fan_in(pl.priors.Normal())),
    "horseshoe": Horseshoe(global_scale=0.3),
    "patterns": {"*.weight": Hierarchical(per="input"), "*": pl.priors.Normal(2.0)},
}


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def data(n=9):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, generator=rng).double(), torch.randn(n, 1, generator=rng).double()


def model_with(prior, temperature=1.0, network=None, noise=0.5):
    return pl.BayesianModel(
        network or small_network(), pl.likelihoods.Normal(scale=noise), prior=prior, temperature=temperature
    )


def scattered(model, seed=3):
    rng = torch.Generator().manual_seed(seed)
    return {k: 0.5 * torch.randn(v.shape, generator=rng, dtype=v.dtype) for k, v in model.start.items()}
