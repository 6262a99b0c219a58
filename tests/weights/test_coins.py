"""Coins by integers have the law of torch's dropout."""

import math

import pytest
import torch
from scipy import stats

from plausible.weights import coins
from plausible.weights.rng import forked


@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-3, 0.9])
def test_coins_fall_at_the_rate_and_apart_from_their_neighbours(rate):
    n = 1 << 20
    with forked(3):
        mask = coins.kept((4, n // 4), rate)
    assert mask.shape == (4, n // 4)
    flat = (~mask).flatten().double()
    assert abs(float(flat.mean()) - rate) < 4.5 * math.sqrt(rate * (1 - rate) / n)
    for lag in (1, 2, coins.BLOCK):
        together = float((flat[lag:] * flat[:-lag]).mean())
        spread = math.sqrt(rate**2 * (1 - rate**2) / (n - lag))
        assert abs(together - rate**2) < 4.5 * spread + 2 * rate * 4.5 * math.sqrt(rate * (1 - rate) / n), lag


def test_runs_of_kept_numbers_have_the_geometric_law():
    rate, n = 0.25, 400_000
    with forked(5):
        gone = torch.nonzero(~coins.kept((n,), rate)).flatten()
    runs = (gone[1:] - gone[:-1] - 1).clamp(max=12).bincount(minlength=13).numpy()
    expected = [rate * (1 - rate) ** k for k in range(12)]
    expected.append(1 - sum(expected))
    assert stats.chisquare(runs, [p * runs.sum() for p in expected]).pvalue > 1e-3


def test_what_is_dropped_is_zero_and_the_rest_is_scaled_up():
    x = torch.linspace(1, 2, 999)
    with forked(0):
        out = coins.drop(x, 0.2)
    left = out != 0
    assert 0.7 < left.float().mean() < 0.9
    torch.testing.assert_close(out[left], x[left] / 0.8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_an_expanded_axis_has_coins_of_its_own_in_every_row(dtype):
    x = torch.ones(3, 50, dtype=dtype)
    with forked(1):
        out = coins.drop(x.expand(4, 3, 50), 0.5)
    assert out.shape == (4, 3, 50)
    assert out.dtype == dtype
    assert len({tuple(row) for row in out.flatten(1).tolist()}) == 4


def test_torch_s_seed_decides_and_every_call_differs():
    def twice():
        with forked(8):
            return coins.kept((100,), 0.5), coins.kept((100,), 0.5)

    (first, second), (again, _) = twice(), twice()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (coins.BLOCK + 1,)])
def test_any_shape_will_do(shape):
    assert coins.drop(torch.ones(shape), 0.3).shape == shape
