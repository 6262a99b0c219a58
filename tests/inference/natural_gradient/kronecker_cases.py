"""A conjugate regression, the dense covariance of an answer, and how a fit is called: what tests of K-FAC share."""

import torch
from torch import nn

import plausible as pl


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


def on_a_plateau():
    """Digits, and a network of eight layers without norms, which initial weights leave with all but constant outputs."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.ReLU())]
    digits = pl.datasets.digits()
    return nn.Sequential(*hidden, nn.Linear(64, 10)), (digits.x_train.flatten(1), digits.y_train)


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


def of_each_output(posterior):
    """Mean (2, 4) and covariance (8, 8) of the regression's weights and bias, one output after the other."""
    mean = torch.cat([posterior.mean["weight"], posterior.mean["bias"][:, None]], 1)
    # Flattened weights come first, then biases.
    order = torch.cat([torch.arange(6).reshape(2, 3), torch.arange(6, 8).reshape(2, 1)], 1).flatten()
    return mean, dense_covariance(posterior)[order][:, order]


def fit(model, data, method, **settings):
    return pl.fit(model, data, method, **{"progress": False, "device": "cpu", "batch_size": 1000, **settings})
