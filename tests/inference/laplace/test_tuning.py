"""Prior precisions and noise found after training, against the maximum of the exact evidence."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from tests.inference.laplace.networks import QUICK, STRUCTURES, class_model, classes, regression_model, sine
from tests.oracles import linear_regression, vector_of
from torch import nn

import plausible as pl


def most_likely(design, y, groups, noise=None):
    """Precisions of the columns' groups (and the noise, unless given) at the maximum of log p(y), by scipy."""

    def downhill(logs):
        variances = np.exp(-np.asarray(logs))[groups]
        scale = noise or math.exp(logs[-1])
        covariance = scale**2 * np.eye(len(y)) + (design * variances) @ design.T
        return -multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)

    start = [0.0] * (max(groups) + 1) + ([] if noise else [0.0])
    best = minimize(downhill, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
    return np.exp(best.x), -best.fun


def tuned(problem, likelihood=None, **settings):
    method = pl.Laplace(structure="full", prior_precision="marginal-likelihood", **settings)
    return pl.fit(problem.model(likelihood=likelihood), problem.data(), method, **QUICK)


@pytest.mark.parametrize("seed", range(4))
def test_the_tuned_precision_has_the_highest_exact_evidence(seed):
    problem = linear_regression(30, 4, seed=seed)
    (precision,), best = most_likely(problem.design.numpy(), problem.y.numpy(), [0] * 5, noise=0.5)
    posterior = tuned(problem)
    assert posterior.model.prior.scale**-2 == pytest.approx(precision, rel=1e-3)
    assert float(posterior.evidence().log_marginal_likelihood) == pytest.approx(best, abs=1e-5)
    # It is the posterior of that prior, mean included.
    same = problem.model(prior=posterior.model.prior)
    truth = pl.fit(same, problem.data(), pl.Laplace(structure="full"), **QUICK)
    torch.testing.assert_close(vector_of(posterior.mean), vector_of(truth.mean), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(posterior.covariance, truth.covariance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_precision_and_noise_together_have_the_highest_exact_evidence(seed):
    problem = linear_regression(40, 4, scatter=0.8, seed=seed)
    (precision, noise), best = most_likely(problem.design.numpy(), problem.y.numpy(), [0] * 5)
    posterior = tuned(problem, pl.likelihoods.Normal(scale="learn"))
    assert posterior.model.prior.scale**-2 == pytest.approx(precision, rel=1e-3)
    assert float(posterior.model.constrain(posterior.mean)["likelihood.scale"]) == pytest.approx(noise, rel=1e-3)
    exact = pl.evidence.exact(posterior.model, problem.data(), noise_scale=noise)
    assert float(exact.log_marginal_likelihood) == pytest.approx(best, abs=1e-6)
    assert posterior.diagnostics().ok


def test_one_precision_per_layer_has_the_highest_exact_evidence():
    """Two linear maps of two inputs, one of which matters less."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 1, bias=False), nn.Linear(3, 1)

        def forward(self, a, b):
            return self.left(a) + self.right(b)

    rng = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    a, b = draw(60, 4), draw(60, 3)
    y = a @ draw(4, 1) * 2 + b @ draw(3, 1) + 0.5 * draw(60, 1)
    design = torch.cat([a, b, torch.ones(60, 1, dtype=torch.float64)], 1).numpy()
    precisions, best = most_likely(design, y[:, 0].numpy(), [0] * 4 + [1] * 4, noise=0.5)
    model = pl.BayesianModel(Sum().double(), pl.likelihoods.Normal(scale=0.5))
    method = pl.Laplace(structure="full", prior_precision="marginal-likelihood", per="layer")
    posterior = pl.fit(model, ((a, b), y), method, **QUICK)
    found = pl.fit(posterior.model, ((a, b), y), pl.Laplace(structure="full"), **QUICK)
    scales = [posterior.model.prior[n].scale ** -2 for n in ("left.weight", "right.weight", "right.bias")]
    np.testing.assert_allclose(scales, [precisions[0], precisions[1], precisions[1]], rtol=1e-3)
    assert float(found.evidence().log_marginal_likelihood) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_tuned_precision_is_where_its_own_evidence_is_highest(structure):
    """At fixed weights, for a network: a step to either side is lower."""
    start = pl.fit(class_model(), classes(), pl.MAP(learning_rate=0.05), epochs=60, progress=False, compile=False)
    method = pl.Laplace(structure=structure, prior_precision="marginal-likelihood", rank=27)
    posterior = pl.fit(class_model(), classes(), method, **{**QUICK, "init": start})
    precision = posterior.model.prior.scale**-2
    other = "full" if structure == "low-rank" else structure  # with all eigenvalues they are the same

    def evidence(p):
        found = pl.evidence.laplace(class_model(), posterior.mean, classes(), structure=other, prior_precision=p)
        return float(found.log_marginal_likelihood)

    values = [evidence(precision * f) for f in (0.9, 1.0, 1.1)]
    assert values[1] > values[0] and values[1] > values[2]
    assert values[1] == pytest.approx(float(posterior.evidence().log_marginal_likelihood), abs=1e-3)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_given_precision_replaces_the_prior(structure):
    problem = linear_regression()
    model = problem.model(prior=pl.priors.Normal(scale=3.0**-0.5))
    top = pl.fit(model, problem.data(), pl.Laplace(structure="full"), **QUICK)
    one = pl.fit(model, problem.data(), pl.Laplace(structure=structure), **{**QUICK, "init": top})
    method = pl.Laplace(structure=structure, prior_precision=3.0)
    other = pl.fit(problem.model(), problem.data(), method, **{**QUICK, "init": top.mean})
    torch.testing.assert_close(vector_of(one.mean), vector_of(other.mean), rtol=1e-8, atol=1e-8)
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(one.unscatter(eye).norm(dim=-1), other.unscatter(eye).norm(dim=-1), rtol=1e-8, atol=0)
    a, b = (float(p.evidence().log_marginal_likelihood) for p in (one, other))
    assert a == pytest.approx(b, abs=1e-8)
    assert other.model.prior.scale**-2 == pytest.approx(3.0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_validation_takes_the_best_of_its_grid(structure):
    model = regression_model()
    start = pl.fit(model, sine(), pl.MAP(learning_rate=0.05), epochs=60, progress=False, compile=False)
    rng = torch.Generator().manual_seed(5)
    x = 2 * torch.randn(30, 2, generator=rng, dtype=torch.float64)
    held_out = x, x[:, :1].sin() + 0.2 * torch.randn(30, 1, generator=rng, dtype=torch.float64)
    settings = {**QUICK, "init": start, "validation": held_out}
    chosen = pl.fit(model, sine(), pl.Laplace(structure=structure, prior_precision="validation"), **settings)
    precision = chosen.model.prior.scale**-2

    def score(p):
        method = pl.Laplace(structure=structure, prior_precision=p)
        return float(pl.fit(model, sine(), method, **settings).predict(held_out[0]).log_prob(held_out[1]).mean())

    if structure != "full":  # which climbs anew for every precision, after it was chosen at one point
        grid = [precision, precision / 10**0.5, precision * 10**0.5]
        best, *others = (score(p) for p in grid if 0.99e-4 < p < 1.01e4)
        assert best >= max(others) - 1e-9
    with pytest.raises(ValueError, match="validation="):
        pl.fit(model, sine(), pl.Laplace(structure=structure, prior_precision="validation"), **QUICK)


class Polynomial(nn.Module):
    def __init__(self, order):
        super().__init__()
        self.linear = nn.Linear(order + 1, 1, bias=False).double()

    def forward(self, x):
        return self.linear(x ** torch.arange(self.linear.in_features))


def test_the_order_of_a_polynomial_is_chosen_as_the_exact_evidence_chooses_it():
    chosen = []
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand(25, 1, generator=rng, dtype=torch.float64) - 1
        y = 1 - 2 * x + 3 * x**3 + 0.2 * torch.randn(25, 1, generator=rng, dtype=torch.float64)
        found = []
        for order in range(7):
            model = pl.BayesianModel(Polynomial(order), pl.likelihoods.Normal(scale=0.2), pl.priors.Normal(scale=2.0))
            posterior = pl.fit(model, (x, y), pl.Laplace(structure="full"), **QUICK)
            design = (x ** torch.arange(order + 1)).numpy()
            truth = multivariate_normal(np.zeros(25), 0.04 * np.eye(25) + 4 * design @ design.T).logpdf(y[:, 0].numpy())
            found.append((float(posterior.evidence().log_marginal_likelihood), truth))
        ours, exact = (int(np.argmax(v)) for v in zip(*found, strict=True))
        chosen.append((ours, exact))
    assert [a for a, _ in chosen] == [b for _, b in chosen]
    assert [b for _, b in chosen].count(3) >= 15  # and the exact one knows the truth


def test_a_prior_with_an_unknown_scale_and_a_tempered_model_are_refused():
    scaled = regression_model(prior=pl.priors.Normal(scale=pl.hyperpriors.InverseGamma()))
    with pytest.raises(pl.NotSupported, match="prior_precision=None"):
        pl.fit(scaled, sine(), pl.Laplace(prior_precision=1.0), **QUICK)
    warm = regression_model(temperature=0.5)
    with pytest.raises(pl.NotSupported, match="validation"):
        pl.fit(warm, sine(), pl.Laplace(prior_precision="marginal-likelihood"), **QUICK)
