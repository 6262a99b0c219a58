"""A conjugate regression, a block with its dense matrices, and how a fit is called: what tests of K-FAC share."""

import torch
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient import kronecker_preconditioner as metric


def several_outputs(bias_prior=None):
    """Linear regression of two targets with one noise: inputs that are correlated and of different sizes."""
    rng = torch.Generator().manual_seed(2)
    x = (
        torch.randn(30, 3, generator=rng).double()
        @ torch.tensor([[3.0, 0, 0], [1.0, 0.3, 0], [-2.0, 0.1, 1.0]]).double()
    )
    y = x @ torch.randn(3, 2, generator=rng).double() + 0.5 * torch.randn(30, 2, generator=rng).double() + 1.0
    prior = {"weight": pl.priors.Normal(scale=1.5), "bias": bias_prior or pl.priors.Normal(scale=4.0)}
    model = pl.BayesianModel(nn.Linear(3, 2).double(), pl.likelihoods.Normal(scale=0.5), prior=prior)
    return model, x, y


def exact_bayes(x, y, bias_precision):
    """Mean (2, 4) and covariance (4, 4) of every output's weights and bias."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    prior = torch.diag(torch.tensor([1 / 1.5**2] * 3 + [bias_precision]).double())
    covariance = torch.linalg.inv(design.T @ design / 0.25 + prior)
    return (covariance @ design.T @ y / 0.25).T, covariance


def dense_covariance(posterior):
    """Of all free unknowns, by their draws' root."""
    size = sum(w.numel() for w in posterior.free.values())
    root = torch.stack([posterior.unscatter(e) for e in torch.eye(size, dtype=torch.float64)])
    return root @ root.T


def fit(model, data, method, **settings):
    return pl.fit(model, data, method, **{"progress": False, "device": "cpu", "batch_size": 1000, **settings})


def block_factors():
    """One block (two groups, three rows, four columns) and one weight of its own."""
    rng = torch.Generator().manual_seed(5)
    root = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    g, a = root(2, 3, 3), root(2, 4, 4)
    return {
        "blocks": {"w + b": {"rows": 50 * g @ g.mT, "columns": a @ a.mT}},
        "diagonal": {"norm": torch.tensor([1.0, 5.0]).double()},
    }


LIKE = {"w": torch.zeros(6, 3).double(), "b": torch.zeros(6).double(), "norm": torch.zeros(2).double()}
PRIOR = {"w": 2.0, "b": 0.5, "norm": 3.0}


def dense_inverse(made, like):
    """Λ⁻¹ of the block, one column after the other, as (group, row, column) each."""
    columns = []
    for i in range(24):
        unit = torch.eye(24, dtype=torch.float64)[i].reshape(2, 3, 4)
        gradient = {"w": unit[..., :3].reshape(6, 3), "b": unit[..., 3].flatten(), "norm": like["norm"]}
        step = metric.precondition(made, gradient)
        columns.append(torch.cat([step["w"].reshape(2, 3, 3), step["b"].reshape(2, 3, 1)], -1).flatten())
    return torch.stack(columns, 1)
