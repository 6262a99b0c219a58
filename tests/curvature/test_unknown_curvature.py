"""Information about the likelihood's own unknowns, against quadrature and automatic differentiation."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from tests.curvature.output_cases import EXACT, normal
from torch import Tensor, nn

from plausible.core.hyperpriors import HalfCauchy, HalfNormal, Hyperprior
from plausible.core.likelihoods import CensoredNormal, Normal, Poisson, StudentT
from plausible.core.model import BayesianModel
from plausible.curvature.outputs import bound_likelihood, empirical_unknown_curvature, unknown_curvature


def model_of(likelihood: Any) -> BayesianModel:
    return BayesianModel(nn.Linear(1, 2).double(), likelihood)


def with_unknowns(model: BayesianModel, **values: Any) -> dict[str, Tensor]:
    """The model's start, with other natural values for the likelihood's unknowns."""
    params = dict(model.start)
    for name, value in values.items():
        key = f"likelihood.{name}"
        params[key] = model._transforms[key].inv(torch.as_tensor(value, dtype=torch.float64))
    return params


OUTPUTS, TARGETS = normal(6, 2), normal(6, 2, seed=3)
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0, 1.5], dtype=torch.float64)


def test_a_bound_likelihood_has_the_natural_values():
    model = model_of(Normal("learn"))
    assert bound_likelihood(model, with_unknowns(model, scale=0.3)).scale.item() == pytest.approx(0.3)
    assert bound_likelihood(model_of(Poisson()), {}) == Poisson()


def test_an_unknown_noise_scale_has_information_two_per_target():
    model = model_of(Normal("learn"))
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=0.3), OUTPUTS, TARGETS, WEIGHTS)
    assert clipped == 0 and found["likelihood.scale"].shape == ()
    assert found["likelihood.scale"].item() == pytest.approx(2 * 2 * WEIGHTS.sum().item(), rel=1e-12)
    unweighted, _ = unknown_curvature(model, with_unknowns(model, scale=0.3), OUTPUTS, TARGETS)
    assert unweighted["likelihood.scale"].item() == pytest.approx(2 * OUTPUTS.numel(), rel=1e-12)


@dataclass(frozen=True)
class Between(HalfNormal):
    """A scale with a transform that is not the exponential."""

    constraint = torch.distributions.constraints.interval(0.1, 2.0)


@pytest.mark.parametrize(
    ("likelihood", "values"),
    [
        (Normal("learn"), {"scale": 0.6}),
        (Normal(Between()), {"scale": 0.6}),
        (StudentT(4.0, "learn"), {"scale": 0.6}),
        (StudentT(HalfCauchy(), "learn"), {"df": 2.5, "scale": 0.6}),
        (StudentT(HalfCauchy(), 0.5), {"df": 40.0}),
    ],
)
def test_expected_information_is_the_mean_squared_score(likelihood, values):
    """∫ (∂ log p / ∂u)² p(y) dy by quadrature, the score by automatic differentiation."""
    model = model_of(likelihood)
    params = with_unknowns(model, **values)
    bound = bound_likelihood(model, params)
    density = stats.norm(0, 0.6) if isinstance(bound, Normal) else stats.t(float(bound.df), 0, float(bound.scale))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found, _ = unknown_curvature(model, params, zero, zero)
    assert found.keys() == {f"likelihood.{name}" for name in values}
    for name, information in found.items():

        def integrand(y, name=name):
            target = torch.tensor([[y]], dtype=torch.float64)
            return empirical_unknown_curvature(model, params, zero, target)[name].item() * density.pdf(y)

        expected = 2 * integrate.quad(integrand, 0, np.inf, epsabs=1e-10, epsrel=1e-8, limit=200)[0]
        assert information.item() == pytest.approx(expected, rel=1e-6)


def test_outputs_and_noise_scale_do_not_meet_in_expectation():
    """What `unknown_curvature` leaves out: E[score of f × score of log σ], over targets placed symmetrically."""
    y = torch.tensor([-1.3, 1.3, -0.2, 0.2], dtype=torch.float64)
    for make in (Normal, lambda s: StudentT(3.0, s)):
        scores = [
            torch.func.grad(lambda s, f, t, make=make: make(s).log_prob(f, t).sum(), argnums=(0, 1))(
                torch.tensor(0.7, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), t[None]
            )
            for t in y
        ]
        assert sum(s * f.item() for s, f in scores).item() == pytest.approx(0, abs=1e-12)


def test_a_scale_for_every_output_gets_information_of_its_own():
    model = model_of(Normal("learn"))
    params = with_unknowns(model, scale=[0.3, 1.2])
    found, _ = unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)
    torch.testing.assert_close(found["likelihood.scale"], 2 * WEIGHTS.sum().expand(2), **EXACT)
    squares = empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)["likelihood.scale"]
    z = (TARGETS - OUTPUTS) / torch.tensor([0.3, 1.2], dtype=torch.float64)
    torch.testing.assert_close(squares, (WEIGHTS[:, None] * (z**2 - 1) ** 2).sum(0), **EXACT)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_without_a_formula_the_information_is_the_observed_one(shape):
    model = model_of(CensoredNormal("learn", lower=-0.5, upper=0.5))
    params = with_unknowns(model, scale=torch.linspace(0.4, 0.9, math.prod(shape)).reshape(shape))

    def loss(u):
        bound = CensoredNormal(u.exp(), lower=-0.5, upper=0.5)
        return -(WEIGHTS * bound.log_prob(OUTPUTS, TARGETS)).sum()

    expected = torch.autograd.functional.hessian(loss, params["likelihood.scale"])
    found, clipped = unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)
    assert clipped == 0 and found["likelihood.scale"].shape == shape
    torch.testing.assert_close(found["likelihood.scale"], expected.diagonal() if shape else expected, **EXACT)


class Bumpy:
    """−log p = u⁴ − u² / 2 in u = log scale, so the observed information at u = 0 is negative: −1 for each example."""

    def __init__(self, scale: Hyperprior):
        self.scale = scale

    def distribution(self, outputs):
        raise NotImplementedError

    def log_prob(self, outputs, y):
        u = torch.log(self.scale)
        return (u**2 / 2 - u**4) * torch.ones_like(outputs[:, 0])


def test_negative_observed_information_is_clipped_and_reported():
    model = model_of(Bumpy(HalfCauchy()))
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=1.0), OUTPUTS, TARGETS)
    assert found["likelihood.scale"] == 0 and clipped == math.inf
    found, clipped = unknown_curvature(model, with_unknowns(model, scale=math.e), OUTPUTS, TARGETS)
    assert found["likelihood.scale"].item() == pytest.approx(6 * 11, rel=1e-12) and clipped == 0


def test_empirical_information_squares_every_examples_own_score():
    model = model_of(CensoredNormal("learn", lower=-0.5, upper=0.5))
    params = with_unknowns(model, scale=0.6)
    expected = 0.0
    for i, weight in enumerate(WEIGHTS):
        u = params["likelihood.scale"].clone().requires_grad_()
        value = CensoredNormal(u.exp(), lower=-0.5, upper=0.5).log_prob(OUTPUTS[i : i + 1], TARGETS[i : i + 1])
        (score,) = torch.autograd.grad(value.sum(), u)
        expected += (weight * score**2).item()
    found = empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)["likelihood.scale"]
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_a_likelihood_without_unknowns_has_no_information_about_them():
    model = model_of(Normal(0.5))
    found, clipped = unknown_curvature(model, model.start, OUTPUTS, TARGETS)
    assert found == {} and clipped == 0
    assert empirical_unknown_curvature(model, model.start, OUTPUTS, TARGETS) == {}


@pytest.mark.parametrize(
    "likelihood", [Normal("learn"), StudentT(HalfCauchy(), "learn"), CensoredNormal("learn", lower=-0.5)]
)
def test_information_about_unknowns_runs_under_vmap(likelihood):
    model = model_of(likelihood)
    several = [{k: v + 0.1 * i for k, v in model.start.items()} for i in range(3)]
    stacked = {k: torch.stack([params[k] for params in several]) for k in model.start}
    for function in (
        lambda params: unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS)[0],
        lambda params: empirical_unknown_curvature(model, params, OUTPUTS, TARGETS, WEIGHTS),
    ):
        together = torch.func.vmap(function)(stacked)
        alone = [function(params) for params in several]
        expected = {k: torch.stack([found[k] for found in alone]) for k in alone[0]}
        torch.testing.assert_close(together, expected, **EXACT)
