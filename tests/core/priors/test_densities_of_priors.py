"""Densities and scores of the priors against scipy, torch and autograd."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from plausible.core.errors import NotSupported
from plausible.core.hyperpriors import HalfCauchy
from plausible.core.priors import Cauchy, FanIn, Flat, Laplace, Normal, Prior, ScaleMixture, StudentT, fan_in
from plausible.core.unknowns import bind

CASES = [
    (Normal(0.7), stats.norm(scale=0.7).logpdf),
    (Laplace(0.7), stats.laplace(scale=0.7).logpdf),
    (Cauchy(0.7), stats.cauchy(scale=0.7).logpdf),
    (StudentT(3.5, 0.7), stats.t(3.5, scale=0.7).logpdf),
    (
        ScaleMixture((0.05, 1.5), (0.3, 0.7)),
        lambda w: np.log(0.3 * stats.norm(scale=0.05).pdf(w) + 0.7 * stats.norm(scale=1.5).pdf(w)),
    ),
    (Flat(), np.zeros_like),
    # Fan-in of (3, 4, 2) is 8.
    (fan_in(StudentT(3.5, 0.7)), stats.t(3.5, scale=0.7 / math.sqrt(8)).logpdf),
    (fan_in(Normal(0.7)), stats.norm(scale=0.7 / math.sqrt(8)).logpdf),
]
IDS = [repr(prior) for prior, _ in CASES]
every_prior = pytest.mark.parametrize(("prior", "reference"), CASES, ids=IDS)


def weights(dtype=torch.float64):
    return 2 * torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@every_prior
def test_log_prob_is_elementwise_and_agrees_with_scipy(prior, reference):
    w = weights()
    assert prior.log_prob(w).dtype == torch.float64
    np.testing.assert_allclose(prior.log_prob(w).numpy(), reference(w.numpy()), rtol=1e-10, atol=1e-10)


@every_prior
def test_the_score_is_the_slope(prior, reference):
    w = weights().requires_grad_()
    if not isinstance(prior, Flat):
        (slope,) = torch.autograd.grad(prior.log_prob(w).sum(), w)
        torch.testing.assert_close(prior.score(w), slope, rtol=1e-10, atol=1e-10)
    else:
        assert torch.equal(prior.score(w), torch.zeros_like(w))


@every_prior
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_is_kept(prior, reference, dtype):
    w = weights(dtype)
    assert prior.log_prob(w).dtype == prior.score(w).dtype == dtype
    rtol = 1e-5 if dtype == torch.float32 else 0.05
    expected = reference(w.double().numpy())
    np.testing.assert_allclose(prior.log_prob(w).double().numpy(), expected, rtol=rtol, atol=rtol)


@every_prior
def test_vmap_is_a_loop(prior, reference):
    stacked = torch.stack([weights(), -0.5 * weights()])
    for function in (prior.log_prob, prior.score):
        torch.testing.assert_close(torch.vmap(function)(stacked), torch.stack([function(w) for w in stacked]))


@every_prior
def test_a_prior_compiles_into_one_graph(prior, reference):
    torch._dynamo.reset()
    compiled = torch.compile(lambda w: prior.log_prob(w) + prior.score(w), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(weights()), prior.log_prob(weights()) + prior.score(weights()))


@every_prior
def test_no_tensor_is_built_from_a_number(prior, reference):
    from torch.utils._python_dispatch import TorchDispatchMode

    built = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(word in str(func) for word in ("scalar_tensor", "lift_fresh", "aten.full.", "_to_copy")):
                built.append(str(func))
            return func(*args, **(kwargs or {}))

    w = weights()
    with Watch():
        prior.log_prob(w)
        prior.score(w)
    assert built == []


@pytest.mark.parametrize("kind", [Normal, Laplace, Cauchy, lambda scale: StudentT(5.0, scale)])
def test_a_bound_scale_equals_the_number(kind):
    w = weights(torch.float32)
    bound = bind(kind(HalfCauchy()), {"scale": torch.tensor(0.3, dtype=torch.float64)})
    assert bound.log_prob(w).dtype == torch.float32
    torch.testing.assert_close(bound.log_prob(w), kind(0.3).log_prob(w))
    torch.testing.assert_close(bound.score(w), kind(0.3).score(w))


def test_tensors_may_hold_a_mixture():
    w = weights()
    prior = ScaleMixture(torch.tensor([0.05, 1.5], dtype=w.dtype), torch.tensor([0.3, 0.7], dtype=w.dtype))
    torch.testing.assert_close(prior.log_prob(w), ScaleMixture((0.05, 1.5), (0.3, 0.7)).log_prob(w))
    torch.testing.assert_close(prior.score(w), ScaleMixture((0.05, 1.5), (0.3, 0.7)).score(w))


def test_a_mixture_is_finite_where_every_component_underflows():
    w = torch.tensor([200.0], requires_grad=True)
    prior = ScaleMixture((0.01, 1.0), (0.5, 0.5))
    assert prior.log_prob(w).item() == pytest.approx(stats.norm.logpdf(200.0) + math.log(0.5), rel=1e-6)
    torch.testing.assert_close(prior.score(w), -w)


def test_fan_in_leaves_biases_and_scalars_alone():
    for shape in ((5,), ()):
        w = torch.full(shape, 0.4)
        torch.testing.assert_close(fan_in(Cauchy(2.0)).log_prob(w), Cauchy(2.0).log_prob(w))
        torch.testing.assert_close(fan_in(Cauchy(2.0)).score(w), Cauchy(2.0).score(w))


def test_fan_in_of_a_convolution_counts_its_window():
    w = torch.full((8, 3, 5, 5), 0.1).double()
    torch.testing.assert_close(fan_in(Normal(2.0)).log_prob(w), Normal(2.0 / math.sqrt(75)).log_prob(w))


def test_normal_priors_tell_their_precision_and_others_have_none():
    w = torch.ones(3, 4)
    torch.testing.assert_close(Normal(0.5).precision(w), torch.full((3, 4), 4.0))
    torch.testing.assert_close(fan_in(Normal(0.5)).precision(w), torch.full((3, 4), 16.0))
    assert Cauchy().precision is None
    assert fan_in(Cauchy()).precision is None


def test_a_prior_without_a_score_says_so_through_fan_in_too():
    class Bare(Prior):
        def log_prob(self, w):
            return -(w.abs() ** 3)

        def sample(self, like, generator=None):
            raise NotSupported

    assert Bare().score is None
    assert FanIn(Bare()).score is None
