"""Every mistake has one line that names the value and the way out."""

import math

import pytest
import torch

from plausible.core import likelihoods
from plausible.core.likelihoods import (
    Bernoulli,
    Categorical,
    CensoredNormal,
    HeteroscedasticNormal,
    Normal,
    Poisson,
    StudentT,
)

zeros = torch.zeros
ELEMENTWISE = [Bernoulli(), Normal(), StudentT(), Poisson(), CensoredNormal(scale=1.0)]


@pytest.mark.parametrize("likelihood", ELEMENTWISE, ids=repr)
@pytest.mark.parametrize(
    ("outputs", "y", "way_out"),
    [
        ((20, 1), (20,), "got (20, 1) and (20,); did you mean targets.unsqueeze(-1)?"),
        ((20,), (20, 1), "got (20,) and (20, 1); did you mean targets.squeeze(-1)?"),
        ((20, 2), (20, 1), "got (20, 2) and (20, 1); did you mean HeteroscedasticNormal(), for a mean and a scale"),
        ((20, 3), (7,), "got (20, 3) and (7,); the first axis counts examples"),
        ((), (), "got () and (); the first axis counts examples"),
    ],
)
def test_outputs_and_targets_must_have_one_shape(likelihood, outputs, y, way_out):
    for function in (likelihood.log_prob, likelihood.check):
        with pytest.raises(ValueError) as error:
            function(zeros(outputs), zeros(y))
        assert str(error.value).startswith("outputs and targets must have one shape, " + way_out)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("likelihood", [HeteroscedasticNormal(), CensoredNormal(lower=0.0)], ids=repr)
@pytest.mark.parametrize(
    ("outputs", "y", "message"),
    [
        ((20, 3), (20, 1), "must hold D means and then D raw scales, got (20, 3); give the network two outputs"),
        ((20,), (20,), "must hold D means and then D raw scales, got (20,); give the network two outputs"),
        ((20, 2), (20, 2), "got outputs and targets of one shape (20, 2); give the network 4 outputs"),
        ((20, 2), (20,), "must have one shape, got (20, 1) and (20,); did you mean targets.unsqueeze(-1)?"),
    ],
)
def test_two_outputs_per_target_are_asked_for(likelihood, outputs, y, message):
    for function in (likelihood.log_prob, likelihood.check):
        with pytest.raises(ValueError) as error:
            function(zeros(outputs), zeros(y))
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("outputs", "y", "message"),
    [
        (zeros(20), zeros(20).long(), "outputs must be (N, classes, ...), got (20,); did you mean Bernoulli()?"),
        (zeros(20, 3), zeros(20, 1).long(), "and labels (20, 1); did you mean targets.squeeze(-1)?"),
        (zeros(5, 3, 4, 4), zeros(5, 1, 4, 4).long(), "labels (5, 1, 4, 4); did you mean targets.squeeze(1)?"),
        (zeros(20, 3), zeros(20, 3), "and labels (20, 3); did you mean targets.argmax(1), or Bernoulli()?"),
        (zeros(20, 3), zeros(7).long(), "got outputs (20, 3) and labels (7,); expected (20,)"),
        (zeros(20, 3), zeros(20), "labels must have an integer dtype, got torch.float32; did you mean targets.long()?"),
        (zeros(20, 3), zeros(20).bool(), "labels must have an integer dtype, got torch.bool; did you mean"),
    ],
)
def test_labels_of_the_wrong_shape_or_dtype_are_refused(outputs, y, message):
    for function in (Categorical().log_prob, Categorical().check):
        with pytest.raises(ValueError) as error:
            function(outputs, y)
        assert message in str(error.value)


@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range_are_named(label):
    y = torch.tensor([0, label, 2])
    with pytest.raises(
        ValueError, match=f"labels must be 0 to 2 for 3 classes, got {label} at 1; give the network more"
    ):
        Categorical().check(zeros(3, 3), y)
    Categorical(ignore_index=label).check(zeros(3, 3), y)


def test_the_place_of_a_wrong_pixel_is_named():
    y = zeros(2, 4, 4).long()
    y[1, 2, 3] = 9
    with pytest.raises(ValueError, match=r"got 9 at \(1, 2, 3\)"):
        Categorical(ignore_index=255).check(zeros(2, 3, 4, 4), y)


@pytest.mark.parametrize("likelihood", [*ELEMENTWISE, HeteroscedasticNormal(), CensoredNormal()], ids=repr)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_targets_must_be_finite(likelihood, value):
    outputs = zeros(3, 2) if likelihood in (HeteroscedasticNormal(), CensoredNormal()) else zeros(3, 1)
    y = torch.tensor([[0.0], [value], [1.0]])
    with pytest.raises(ValueError, match=rf"targets must be finite, got {value} at \(1, 0\); drop these examples"):
        likelihood.check(outputs, y)


def test_targets_of_a_bernoulli_lie_between_zero_and_one():
    for y in (torch.tensor([0, 2]), torch.tensor([0.0, 2.0])):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got 2(\.0)? at 1; did you mean Categorical\(\)\?"):
            Bernoulli().check(zeros(2), y)
    with pytest.raises(ValueError, match="got -1 at 0"):
        Bernoulli().check(zeros(2), torch.tensor([-1, 1]))


@pytest.mark.parametrize("y", [torch.tensor([3, -2]), torch.tensor([3.0, -2.0]), torch.tensor([3.0, 0.5])])
def test_counts_are_whole_numbers_from_zero(y):
    with pytest.raises(ValueError, match=f"counts must be whole numbers from 0, got {y[1].item()} at 1; for other"):
        Poisson().check(zeros(2), y)


def test_targets_below_a_truncation_are_refused():
    with pytest.raises(
        ValueError, match="must not be below truncate_below=4.0, got 3.5 at 1; for values that were seen"
    ):
        CensoredNormal(1.0, truncate_below=4.0).check(zeros(2), torch.tensor([4.5, 3.5]))


@pytest.mark.parametrize("kind", [Normal, lambda s: StudentT(4.0, s), CensoredNormal])
def test_a_scale_is_checked_by_value(kind):
    with pytest.raises(ValueError, match="^scale must be positive and finite, got -1.0$"):
        kind(-1.0)
    with pytest.raises(
        ValueError, match="^scale must be a positive number, a tensor, a hyperprior or \"learn\", got 'auto'$"
    ):
        kind("auto")
    with pytest.raises(TypeError, match="^scale must be a positive number, a tensor or a hyperprior, got "):
        kind((1.0,))


def test_degrees_of_freedom_are_checked_by_value():
    with pytest.raises(ValueError, match="df must be positive and finite, got 0"):
        StudentT(df=0)


@pytest.mark.parametrize("value", [True, 1.5, "255"])
def test_an_ignored_label_is_an_integer(value):
    with pytest.raises(TypeError, match="ignore_index must be an integer label or None, got"):
        Categorical(ignore_index=value)


@pytest.mark.parametrize(
    ("limits", "listed"),
    [
        ({"lower": 2.0, "upper": 1.0}, "lower=2.0, upper=1.0"),
        ({"lower": 1.0, "upper": 1.0}, "lower=1.0, upper=1.0"),
        ({"lower": 1.0, "truncate_below": 3.0}, "truncate_below=3.0, lower=1.0"),
    ],
)
def test_limits_must_be_in_order(limits, listed):
    with pytest.raises(ValueError, match=f"must satisfy truncate_below < lower < upper, got {listed}; leave out"):
        CensoredNormal(1.0, **limits)


def test_limits_must_be_finite_numbers():
    with pytest.raises(ValueError, match="upper must be finite, got inf"):
        CensoredNormal(1.0, upper=math.inf)
    with pytest.raises(TypeError, match="lower must be a number, got '0'"):
        CensoredNormal(1.0, lower="0")


def test_every_likelihood_is_in_the_registry_under_its_own_name():
    base = likelihoods.Likelihood
    classes = {v.__name__: v for v in vars(likelihoods).values() if isinstance(v, type) and issubclass(v, base)}
    del classes["Likelihood"]
    assert likelihoods.registry == classes
