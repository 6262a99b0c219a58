"""Log likelihoods against scipy.stats and torch, in float64 to 1e-10, and what every likelihood must do."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from plausible.core.hyperpriors import HalfCauchy, LogFlat
from plausible.core.likelihoods import (
    Bernoulli,
    Categorical,
    CensoredNormal,
    HeteroscedasticNormal,
    Normal,
    Poisson,
    StudentT,
)
from plausible.core.unknowns import bind


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape, classes=3):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))


def softplus(x):
    return np.logaddexp(0, x)


BOUND = bind(
    StudentT(df=HalfCauchy(), scale="learn"),
    dict(zip(("df", "scale"), torch.tensor([3.0, 0.6], dtype=torch.float64), strict=True)),
)
CASES = {
    "categorical": (Categorical(), normal(7, 3), labels(7)),
    "pixels": (Categorical(ignore_index=2), normal(4, 3, 5, 6), labels(4, 5, 6)),
    "bernoulli": (Bernoulli(), normal(7, 2), labels(7, 2, classes=2)),
    "normal": (Normal(0.4), normal(7, 2), normal(7, 2, seed=5)),
    "one output": (Normal(0.4), normal(7), normal(7, seed=5)),
    "heteroscedastic": (HeteroscedasticNormal(), normal(7, 4), normal(7, 2, seed=5)),
    "student": (StudentT(3.0, 0.4), normal(7, 2), normal(7, 2, seed=5)),
    "bound": (BOUND, normal(7, 2), normal(7, 2, seed=5)),
    "poisson": (Poisson(), normal(7, 2), labels(7, 2, classes=9)),
    "censored": (CensoredNormal(0.4, lower=-1.0, upper=1.0), normal(7, 2), normal(7, 2, seed=5)),
    "truncated": (CensoredNormal(None, -1.0, 1.0, -2.0), normal(7, 4), normal(7, 2, seed=5).clamp(-2, 2)),
}
every_case = pytest.mark.parametrize("case", CASES)

REFERENCES = {
    "categorical": lambda o, y: np.log(np.exp(o) / np.exp(o).sum(1, keepdims=True))[np.arange(7), y],
    "bernoulli": lambda o, y: stats.bernoulli(1 / (1 + np.exp(-o))).logpmf(y).sum(1),
    "normal": lambda o, y: stats.norm(o, 0.4).logpdf(y).sum(1),
    "one output": lambda o, y: stats.norm(o, 0.4).logpdf(y),
    "heteroscedastic": lambda o, y: stats.norm(o[:, :2], softplus(o[:, 2:])).logpdf(y).sum(1),
    "student": lambda o, y: stats.t(3.0, o, 0.4).logpdf(y).sum(1),
    "poisson": lambda o, y: stats.poisson(np.exp(o)).logpmf(y).sum(1),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_log_prob_agrees_with_scipy(case):
    likelihood, outputs, y = CASES[case]
    ours = likelihood.log_prob(outputs, y)
    assert ours.shape == (7,)
    np.testing.assert_allclose(ours.numpy(), REFERENCES[case](outputs.numpy(), y.numpy()), rtol=1e-10, atol=1e-10)


def test_pixels_agree_with_cross_entropy_and_ignored_ones_contribute_nothing():
    likelihood, outputs, y = CASES["pixels"]
    outputs = outputs.clone().requires_grad_()
    expected = -cross_entropy(outputs, y, ignore_index=2, reduction="none").sum((1, 2))
    torch.testing.assert_close(likelihood.log_prob(outputs, y), expected, rtol=1e-12, atol=0)
    (slope,) = torch.autograd.grad(likelihood.log_prob(outputs, y).sum(), outputs)
    assert (slope.movedim(1, -1)[y == 2] == 0).all()
    assert (slope.movedim(1, -1)[y != 2] != 0).any()


def test_an_ignored_label_may_lie_outside_the_classes():
    outputs = normal(2, 3)
    ours = Categorical(ignore_index=255).log_prob(outputs, torch.tensor([1, 255]))
    torch.testing.assert_close(ours, torch.stack([torch.log_softmax(outputs[0], 0)[1], torch.zeros(()).double()]))


@every_case
def test_a_distribution_agrees_with_log_prob_and_has_the_shape_of_the_targets(case):
    likelihood, outputs, y = CASES[case]
    distribution = likelihood.distribution(outputs)
    assert distribution.batch_shape == y.shape
    if case in ("censored", "truncated", "pixels"):  # the quantity is not censored, the pixel is not ignored
        return
    each = distribution.log_prob(y.to(outputs.dtype) if case != "categorical" else y)
    torch.testing.assert_close(likelihood.log_prob(outputs, y), each.reshape(7, -1).sum(1), rtol=1e-10, atol=1e-10)


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_of_the_outputs_is_kept(case, dtype):
    likelihood, outputs, y = CASES[case]
    outputs, y = outputs.to(dtype), y.to(dtype) if y.is_floating_point() else y
    assert likelihood.log_prob(outputs, y).dtype == dtype
    distribution = likelihood.distribution(outputs)
    assert distribution.mean.dtype == distribution.variance.dtype == dtype


@every_case
def test_vmap_over_outputs_is_a_loop(case):
    likelihood, outputs, y = CASES[case]
    stacked = torch.stack([outputs, -outputs, 3 * outputs])

    def total(outputs):
        return likelihood.log_prob(outputs, y).sum()

    for function in (lambda o: likelihood.log_prob(o, y), torch.func.grad(total)):
        looped = torch.stack([function(o) for o in stacked])
        torch.testing.assert_close(torch.vmap(function)(stacked), looped, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Normal, lambda s: StudentT(3.0, s), lambda s: CensoredNormal(s, -1.0, 1.0, -2.0)])
def test_vmap_over_bound_scales_is_a_loop(kind):
    outputs, y = normal(3, 7, 2), normal(7, 2, seed=5).clamp(-2, 2)
    scales = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)

    def log_prob(outputs, scale):
        return bind(kind("learn"), {"scale": scale}).log_prob(outputs, y)

    vectorised = torch.vmap(log_prob)(outputs, scales)
    looped = [kind(s).log_prob(o, y) for o, s in zip(outputs, scales.tolist(), strict=True)]
    torch.testing.assert_close(vectorised, torch.stack(looped), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [Normal, lambda s: StudentT(3.0, s), lambda s: CensoredNormal(s, truncate_below=-2.0)])
def test_a_distribution_takes_one_scale_per_draw(kind):
    outputs, scales = normal(3, 7, 2), torch.tensor([0.3, 1.0, 2.0])
    distribution = bind(kind("learn"), {"scale": scales.reshape(3, 1, 1)}).distribution(outputs)
    assert distribution.mean.dtype == torch.float64
    for draw, scale in enumerate(scales.tolist()):
        torch.testing.assert_close(distribution.variance[draw], kind(scale).distribution(outputs[draw]).variance)


@every_case
def test_a_likelihood_compiles_into_one_graph(case):
    likelihood, outputs, y = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(likelihood.log_prob, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(outputs, y), likelihood.log_prob(outputs, y))


@every_case
def test_no_tensor_is_built_from_a_number_or_read_back(case):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []
    suspicious = ("scalar_tensor", "lift_fresh", "aten.full.", "_local_scalar_dense", "nonzero")

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(word in str(func) for word in suspicious):
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    likelihood, outputs, y = CASES[case]
    with Watch():
        likelihood.log_prob(outputs, y)
    assert seen == []


@every_case
def test_good_targets_pass_the_check(case):
    likelihood, outputs, y = CASES[case]
    likelihood.check(outputs, y)


def test_learn_is_a_flat_prior_on_the_log_scale():
    assert Normal("learn").scale == StudentT(scale="learn").scale == CensoredNormal("learn").scale == LogFlat()


def test_tasks_are_told():
    assert {
        type(likelihood).__name__ for likelihood, _, _ in CASES.values() if likelihood.task == "classification"
    } == {
        "Categorical",
        "Bernoulli",
    }


def test_bernoulli_takes_probabilities_and_survives_large_logits():
    outputs = torch.tensor([[40.0], [-40.0], [500.0], [0.3]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0], [0.0], [0.0], [0.25]], dtype=torch.float64)
    ours = Bernoulli().log_prob(outputs, y)
    p = 1 / (1 + np.exp(-0.3))
    expected = [-np.exp(-40.0), -np.exp(-40.0), -500.0, 0.25 * np.log(p) + 0.75 * np.log(1 - p)]
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-10)
    assert torch.isfinite(torch.autograd.grad(ours.sum(), outputs)[0]).all()


def test_a_tiny_predicted_scale_stays_finite():
    outputs = torch.tensor([[0.0, -200.0], [0.0, -10.0]], requires_grad=True)
    log_prob = HeteroscedasticNormal().log_prob(outputs, torch.tensor([[1.0], [1e-4]]))
    (slope,) = torch.autograd.grad(log_prob.sum(), outputs)
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(slope).all()
    assert HeteroscedasticNormal().distribution(outputs).scale[0].item() == pytest.approx(1e-6)
    # Above the floor softplus is untouched.
    assert HeteroscedasticNormal().distribution(outputs).scale[1].item() == pytest.approx(
        np.logaddexp(0, -10), rel=1e-6
    )
