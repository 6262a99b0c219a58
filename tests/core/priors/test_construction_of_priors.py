"""What the priors' constructors refuse."""

import math

import pytest
import torch

from plausible.core import priors
from plausible.core.hyperpriors import HalfCauchy
from plausible.core.priors import Cauchy, Laplace, Normal, ScaleMixture, StudentT, fan_in


@pytest.mark.parametrize("kind", [Normal, Laplace, Cauchy, lambda scale: StudentT(scale=scale)])
@pytest.mark.parametrize("value", [0.0, -1.5, math.inf, math.nan])
def test_a_scale_must_be_positive_and_finite(kind, value):
    with pytest.raises(ValueError, match=f"^scale must be positive and finite, got {value}$"):
        kind(value)


def test_degrees_of_freedom_must_be_positive():
    with pytest.raises(ValueError, match="^df must be positive and finite, got -2$"):
        StudentT(df=-2)


@pytest.mark.parametrize("value", ["learn", None, True, HalfCauchy])
def test_a_scale_must_be_a_number_a_tensor_or_a_hyperprior(value):
    with pytest.raises(TypeError, match="^scale must be a positive number, a tensor or a hyperprior, got "):
        Normal(value)


def test_tensors_and_hyperpriors_are_taken_as_they_are():
    assert Normal(HalfCauchy()).scale == HalfCauchy()
    assert torch.vmap(lambda s: Normal(s).log_prob(s))(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize(
    ("scales", "weights", "message"),
    [
        ((1.0, 2.0), (0.5, 0.6), r"weights must sum to 1, got \(0.5, 0.6\); divide them by 1.1"),
        ((1.0, 2.0), (1.0,), "scales and weights must have one entry per component, got 2 and 1"),
        ((), (), "scales and weights must have one entry per component, got 0 and 0"),
        ((1.0, -2.0), (0.5, 0.5), "each of scales must be positive and finite, got -2.0"),
        ((1.0, 2.0), (1.0, 0.0), "each of weights must be positive and finite, got 0.0"),
    ],
)
def test_a_mixture_needs_positive_scales_and_weights_that_sum_to_one(scales, weights, message):
    with pytest.raises(ValueError, match=message):
        ScaleMixture(scales, weights)


@pytest.mark.parametrize("scales", [1.0, "12", HalfCauchy()])
def test_a_mixture_needs_sequences(scales):
    with pytest.raises(TypeError, match="scales must be a sequence of numbers or a tensor, got"):
        ScaleMixture(scales, (1.0,))


@pytest.mark.parametrize("wrong", [1.0, Normal])
def test_fan_in_needs_a_prior(wrong):
    with pytest.raises(TypeError, match=r"fan_in needs a prior such as Normal\(scale=1.0\), got"):
        fan_in(wrong)


def test_every_prior_is_in_the_registry_under_its_own_name():
    classes = {name: vars(priors)[name] for name in priors.__all__ if isinstance(vars(priors)[name], type)}
    del classes["Prior"]
    assert priors.registry == classes
