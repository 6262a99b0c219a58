"""Gaussian posteriors of every shape with their dense covariances, and a network's dense Jacobian."""

import torch
from tests.oracles import anisotropic_covariance, vector_of
from torch import nn

import plausible as pl
from plausible import posteriors
from plausible.core.posteriors.kronecker import Block, block_from_factors

SHAPES = ["Diagonal", "LowRank", "Kronecker", "Full"]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tanh_network(dtype=torch.float64):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def a_model(likelihood=None, dtype=torch.float64, network=None):
    return pl.BayesianModel(network or tanh_network(dtype), likelihood or pl.likelihoods.Normal(scale=0.3))


def tree_of(model, vector):
    parts = vector.split([w.numel() for w in model.start.values()], -1)
    return {k: p.reshape((*vector.shape[:-1], *w.shape)) for (k, w), p in zip(model.start.items(), parts, strict=True)}


def a_gaussian(model, shape="Full", size=0.4, seed=0):
    """A posterior of the given shape at the network's own weights, and its dense covariance over the weights."""
    mean = model.init()
    count = sum(w.numel() for w in mean.values())
    dtype = model.dtype
    if shape == "Full":
        covariance = size**2 * anisotropic_covariance(count, seed=seed)
        return posteriors.Full(model, mean, covariance.to(dtype)), covariance
    if shape == "Diagonal":
        scale = size * 10 ** (randn(count, seed=seed).clamp(-1, 1) / 2)
        return posteriors.Diagonal(model, mean, tree_of(model, scale.to(dtype))), torch.diag(scale**2)
    if shape == "LowRank":
        variance, factors = size**2 * randn(count, seed=seed) ** 2 + 1e-3, size / 2 * randn(3, count, seed=seed + 1)
        made = posteriors.LowRank(model, mean, tree_of(model, variance.to(dtype)), tree_of(model, factors.to(dtype)))
        return made, torch.diag(variance) + factors.T @ factors
    return a_kronecker(model, size, seed)


def a_kronecker(model, size=0.4, seed=0):
    blocks, scale, covered = [], {}, set()
    for k, w in model.start.items():
        if w.dim() > 1:
            bias = k.removesuffix("weight") + "bias"
            bias = bias if bias in model.start else None
            rows, columns = w.shape[0], w[0].numel() + (bias is not None)
            a, g = randn(1, columns + 1, columns, seed=seed), randn(1, rows + 1, rows, seed=seed + 1)
            d = torch.full((1, columns), size**-2, dtype=torch.float64)
            block, _ = block_from_factors(k, bias, a.mT @ a, g.mT @ g, d)
            tensors = [t.to(model.dtype) for t in (block.left, block.right, block.scale)]
            blocks.append(Block(k, bias, *tensors))
            covered |= set(blocks[-1].names)
    scale = {k: torch.full_like(w, size) for k, w in model.start.items() if k not in covered}
    posterior = posteriors.Kronecker(model, model.init(), blocks, scale)
    eye = torch.eye(sum(w.numel() for w in model.start.values()), dtype=model.dtype)
    root = posterior.unscatter(eye)  # tested against brute force with the shape itself
    return posterior, (root @ root.T).double()


def dense_jacobian(model, params, x, buffers=None):
    """(N, outputs, P) by torch's reverse mode on the user's own module."""
    names = model.weight_names
    net = model.source.eval()

    def outputs(vector):
        weights = tree_of(model, vector)
        return torch.func.functional_call(net, {**{k: weights[k] for k in names}, **(buffers or {})}, (x,))

    return outputs(vector_of(params)).detach(), torch.autograd.functional.jacobian(outputs, vector_of(params))
