"""The exact evidence against the density of y itself, which is normal."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from tests.oracles import linear_regression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plausible as pl


class Polynomial(nn.Module):
    """Bare coefficients of 1, x, x², ..."""

    def __init__(self, order: int):
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(order + 1, dtype=torch.float64))

    def forward(self, x):
        return (x ** torch.arange(len(self.coefficients))) @ self.coefficients.unsqueeze(-1)


def density_of_y(design, y, noise, prior_variances) -> float:
    covariance = noise**2 * np.eye(len(y)) + design @ np.diag(prior_variances) @ design.T
    return multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


def cubic(n=15, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=rng, dtype=torch.float64) * 2 - 1
    return x, x**3 - x + 0.1 * torch.randn(n, 1, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("order", [0, 1, 4, 9])
@pytest.mark.parametrize("noise, scale", [(0.1, 1.0), (2.0, 0.3), (0.02, 5.0)])
def test_the_evidence_of_a_polynomial_is_the_density_of_its_targets(order, noise, scale):
    x, y = cubic()
    model = pl.BayesianModel(Polynomial(order), pl.likelihoods.Normal(scale=noise), pl.priors.Normal(scale=scale))
    design = (x ** torch.arange(order + 1)).numpy()
    truth = density_of_y(design, y[:, 0].numpy(), noise, np.full(order + 1, scale**2))
    evidence = pl.evidence.exact(model, (x, y))
    assert evidence.kind == "exact" and evidence.standard_error == 0.0
    assert evidence.log_marginal_likelihood.shape == ()
    assert float(evidence.log_marginal_likelihood) == pytest.approx(truth, abs=1e-7)


def test_priors_by_name_and_hyperparameters_instead_of_the_models_own():
    problem = linear_regression()
    design, y = problem.design.numpy(), problem.y.numpy()
    by_name = problem.model(prior={"weight": pl.priors.Normal(scale=0.5), "bias": pl.priors.Normal(scale=3.0)})
    truth = density_of_y(design, y, 0.5, [0.25] * 3 + [9.0])
    assert float(pl.evidence.exact(by_name, problem.data()).log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)
    given = {"prior_precision": {"weight": 4.0, "*": 1 / 9}, "noise_scale": 0.8}
    truth = density_of_y(design, y, 0.8, [0.25] * 3 + [9.0])
    found = pl.evidence.exact(problem.model(), problem.data(), **given)
    assert float(found.log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)
    fan_in = problem.model(prior=pl.priors.fan_in(pl.priors.Normal(scale=1.5)))
    truth = density_of_y(design, y, 0.5, [2.25 / 3] * 3 + [2.25])
    assert float(pl.evidence.exact(fan_in, problem.data()).log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)


def test_the_networks_own_weights_and_the_batches_do_not_matter():
    problem = linear_regression(n=700)
    loader = DataLoader(TensorDataset(*problem.data()), batch_size=33, shuffle=True)
    for data in (problem.data(), loader, TensorDataset(*problem.data())):
        model = pl.BayesianModel(nn.Linear(3, 1).double(), pl.likelihoods.Normal(scale=0.5))
        found = float(pl.evidence.exact(model, data).log_marginal_likelihood)
        assert found == pytest.approx(problem.log_evidence, abs=1e-6)


def test_convolutions_and_sums_of_layers_are_linear_too():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Unflatten(1, (3, 4)), nn.AvgPool1d(4), nn.Flatten())
    x, y = torch.randn(10, 2, 6, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
    model = pl.BayesianModel(network.double(), pl.likelihoods.Normal(scale=0.7), pl.priors.Normal(scale=0.4))
    weights = dict(network.named_parameters())
    zero = {k: torch.zeros_like(w) for k, w in weights.items()}
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(network, w, x).flatten())(zero)
    design = torch.cat([j.reshape(30, -1) for j in jacobian.values()], 1).numpy()
    truth = density_of_y(design, y.flatten().numpy(), 0.7, np.full(design.shape[1], 0.16))
    assert float(pl.evidence.exact(model, (x, y)).log_marginal_likelihood) == pytest.approx(truth, abs=1e-8)


def test_gradients_match_finite_differences():
    problem = linear_regression()

    def value(logs):
        precision = {"weight": logs[0].exp(), "bias": logs[1].exp()}
        found = pl.evidence.exact(problem.model(), problem.data(), prior_precision=precision, noise_scale=logs[2].exp())
        return found.log_marginal_likelihood

    logs = torch.tensor([0.3, -1.0, -0.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (logs,), eps=1e-5, atol=1e-6, rtol=1e-6)


def test_what_has_no_closed_form_is_refused():
    problem = linear_regression()
    deep = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    twice = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()
    noise = pl.likelihoods.Normal(scale=0.5)
    for network in (deep, twice):
        with pytest.raises(pl.NotSupported, match=r"not linear.*pl\.evidence\.laplace"):
            pl.evidence.exact(pl.BayesianModel(network, noise), problem.data())
    last = pl.BayesianModel(deep, noise, parameters="2.*")
    assert torch.isfinite(pl.evidence.exact(last, problem.data()).log_marginal_likelihood)
    with pytest.raises(pl.NotSupported, match="give noise_scale"):
        pl.evidence.exact(problem.model(likelihood=pl.likelihoods.Normal(scale="learn")), problem.data())
    with pytest.raises(pl.NotSupported, match="flat"):
        pl.evidence.exact(problem.model(prior=pl.priors.Flat()), problem.data())
    with pytest.raises(pl.NotSupported, match=r"priors\.Normal"):
        pl.evidence.exact(problem.model(prior=pl.priors.Cauchy()), problem.data())
    with pytest.raises(pl.NotSupported, match=r"likelihoods\.Normal"):
        pl.evidence.exact(problem.model(likelihood=pl.likelihoods.StudentT()), problem.data())


def test_unknown_noise_is_held_where_it_is_given():
    problem = linear_regression()
    model = problem.model(likelihood=pl.likelihoods.Normal(scale="learn"))
    found = pl.evidence.exact(model, problem.data(), noise_scale=0.5)
    assert float(found.log_marginal_likelihood) == pytest.approx(problem.log_evidence, abs=1e-8)


@pytest.mark.parametrize(
    "wrong", [{"prior_precision": -1.0}, {"prior_precision": {"weight": 0.0}}, {"noise_scale": 0.0}]
)
def test_hyperparameters_that_are_not_positive_are_refused_with_their_value(wrong):
    problem = linear_regression()
    value = next(iter(wrong.values()))
    shown = f"{value['weight'] if isinstance(value, dict) else value:g}"
    for estimate in (pl.evidence.exact, lambda m, d, **k: pl.evidence.laplace(m, m.init(), d, structure="full", **k)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be positive.*got {shown}$"):
            estimate(problem.model(), problem.data(), **wrong)


def test_several_noise_scales_are_refused():
    x = torch.randn(10, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = pl.BayesianModel(nn.Linear(2, 2).double(), pl.likelihoods.Normal(scale=torch.tensor([0.1, 0.2])))
    with pytest.raises(pl.NotSupported, match="one scale here, got 2"):
        pl.evidence.exact(model, (x, x))
