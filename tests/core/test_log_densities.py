"""Shared log densities against scipy, far into the tails."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import special, stats

from plausible.core import log_densities


def test_log_ndtr_agrees_with_scipy_in_both_tails():
    x = np.concatenate([np.linspace(-60, 12, 400), [-1e6, -1000.0, -1.0, 0.0, 40.0]])
    np.testing.assert_allclose(
        log_densities.log_ndtr(torch.tensor(x)).numpy(), special.log_ndtr(x), rtol=1e-12, atol=1e-300
    )


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_the_slope_of_log_ndtr_is_the_hazard(dtype, rtol):
    x = torch.tensor([-1000.0, -40.0, -5.0, -1.5, -1.0, -0.5, 0.0, 3.0], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(log_densities.log_ndtr(x).sum(), x)
    # φ(x) / Φ(x) = √(2/π) / erfcx(-x/√2)
    expected = math.sqrt(2 / math.pi) / special.erfcx(-x.detach().double().numpy() / math.sqrt(2))
    np.testing.assert_allclose(slope.double().numpy(), expected, rtol=rtol)


def test_log_ndtr_vectorises_without_a_fallback():
    x = torch.linspace(-50, 10, 12).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vectorised = torch.vmap(torch.vmap(torch.func.grad(log_densities.log_ndtr)))(x)
    assert torch.isfinite(vectorised).all()


def test_log_ndtr_takes_half_precision():
    assert log_densities.log_ndtr(torch.tensor([-3.0], dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("a", "b"), [(-1.0, 1.0), (-50.0, -49.9), (49.9, 50.0), (-60.0, 60.0), (0.3, 0.300001), (5.0, 90.0)]
)
def test_log_ndtr_difference_agrees_with_scipy(a, b):
    ours = log_densities.log_ndtr_difference(*torch.tensor([a, b], dtype=torch.float64)).item()
    left = (a, b) if a <= 0 else (-b, -a)
    expected = special.logsumexp([special.log_ndtr(left[1]), special.log_ndtr(left[0])], b=[1, -1])
    assert ours == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("df", "scale"), [(1.0, 0.5), (4.0, 2.0), (60.0, 1.0)])
def test_numbers_and_tensors_give_the_same_densities(df, scale):
    x = torch.linspace(-8, 8, 9, dtype=torch.float64)
    as_tensors = log_densities.log_student_t(x, torch.tensor(df).double(), torch.tensor(scale).double())
    np.testing.assert_allclose(as_tensors.numpy(), stats.t(df, scale=scale).logpdf(x.numpy()), rtol=1e-12)
    torch.testing.assert_close(log_densities.log_student_t(x, df, scale), as_tensors, rtol=1e-12, atol=0)
    expected = stats.norm(scale=scale).logpdf(x.numpy())
    np.testing.assert_allclose(log_densities.log_normal(x, torch.tensor(scale).double()).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(log_densities.log_normal(x, scale).numpy(), expected, rtol=1e-12)
