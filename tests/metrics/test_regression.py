import math

import pytest
import scipy.stats
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import root_mean_squared_error

from plausible.metrics import crps, interval_score, picp, rmse

NUMBERS = st.integers(-5, 5).map(float)


@pytest.fixture
def observed(dtype):
    """(samples, y): 40 draws of 100 skewed predictions of two outputs."""
    generator = torch.Generator().manual_seed(7)
    samples = torch.randn(40, 100, 2, generator=generator, dtype=dtype).exp()
    return samples, torch.randn(100, 2, generator=generator, dtype=dtype)


def test_rmse_is_that_of_sklearn(observed):
    samples, y = observed
    mean = samples.mean(0)
    assert rmse(mean, y).item() == pytest.approx(root_mean_squared_error(y.flatten(), mean.flatten()), rel=1e-6)


@pytest.mark.parametrize("estimator", ["nrg", "qd"])
def test_crps_is_that_of_scoringrules(observed, estimator):
    samples, y = observed
    theirs = scoringrules.crps_ensemble(y.double().numpy(), samples.double().numpy(), m_axis=0, estimator=estimator)
    assert crps(samples, y).item() == pytest.approx(theirs.mean(), rel=1e-5)


def test_crps_counts_all_pairs_where_the_unbiased_estimate_leaves_out_the_diagonal(observed):
    samples, y = observed
    fair = scoringrules.crps_ensemble(y.double().numpy(), samples.double().numpy(), m_axis=0, estimator="fair").mean()
    pairs = (samples[:, None] - samples[None]).abs().mean().item()
    assert crps(samples, y).item() == pytest.approx(fair + pairs / 2 / 39, rel=1e-5)


def test_crps_of_many_draws_tends_to_that_of_the_normal_they_come_from():
    samples = torch.randn(20_000, generator=torch.Generator().manual_seed(8), dtype=torch.float64) * 2 + 1
    z = (0.3 - 1) / 2
    exact = 2 * (z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    # Its Monte Carlo error is sd(|x - y| - E|x - x'|) / √S, which is below 2 / √20000 = 0.014; five of these is safe.
    assert crps(samples, torch.tensor(0.3, dtype=torch.float64)).item() == pytest.approx(exact, abs=0.07)


@settings(deadline=None, max_examples=50)
@given(samples=st.lists(NUMBERS, min_size=1, max_size=12), y=NUMBERS, shift=st.sampled_from([0.0, 1e6]))
def test_crps_with_ties_is_the_double_sum_even_far_from_zero(samples, y, shift):
    x = torch.tensor(samples, dtype=torch.float64)
    expected = (x - y).abs().mean() - (x[:, None] - x).abs().mean() / 2
    ours = crps(x + shift, torch.tensor(y + shift, dtype=torch.float64))
    assert ours.item() == pytest.approx(expected.item(), abs=1e-12)
    assert ours >= 0


def test_crps_of_one_sample_is_the_absolute_error():
    samples, y = torch.tensor([[1.0, 5.0]]), torch.tensor([3.0, 4.5])
    assert crps(samples, y).item() == pytest.approx((2 + 0.5) / 2)


def test_an_ensembles_crps_differs_from_every_members(observed):
    samples, y = observed
    together = crps(samples, y)
    assert all((crps(member[None], y) - together).abs() > 0.01 for member in samples)


def test_picp_counts_both_ends_as_inside():
    lower, upper = torch.zeros(5), torch.ones(5)
    assert picp(lower, upper, torch.tensor([0.0, 1.0, 0.5, -0.1, 1.1])).item() == pytest.approx(0.6)
    assert picp(torch.full((2,), -torch.inf), torch.zeros(2), torch.tensor([-1e30, 1.0])).item() == 0.5


def test_picp_of_the_true_quantiles_is_their_level():
    y = torch.randn(10_000, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    end = torch.full_like(y, scipy.stats.norm.ppf(0.95))
    # Binomial: five standard errors are 5 √(0.9 · 0.1 / 10000) = 0.015.
    assert picp(-end, end, y).item() == pytest.approx(0.9, abs=0.015)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_interval_score_is_that_of_scoringrules(observed, level):
    samples, y = observed
    lower, upper = samples.quantile(0.1, dim=0), samples.quantile(0.8, dim=0)
    theirs = scoringrules.interval_score(y.numpy(), lower.numpy(), upper.numpy(), 1 - level)
    assert interval_score(lower, upper, y, level).item() == pytest.approx(theirs.mean(), rel=1e-5)


def test_interval_score_is_least_at_the_true_quantiles():
    y = torch.randn(20_000, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    scores = [interval_score(-end * torch.ones_like(y), end * torch.ones_like(y), y, 0.9) for end in (1.2, 1.645, 2.2)]
    assert scores[1] < scores[0] - 0.1 and scores[1] < scores[2] - 0.1


def test_the_order_of_examples_is_irrelevant(observed):
    samples, y = observed
    order = torch.randperm(100, generator=torch.Generator().manual_seed(11))
    shuffled = samples[torch.randperm(40, generator=torch.Generator().manual_seed(12))][:, order]
    torch.testing.assert_close(crps(shuffled, y[order]), crps(samples, y))
    torch.testing.assert_close(rmse(shuffled[0], y[order]), rmse(shuffled[0][order.argsort()], y))


def test_targets_of_another_shape_are_never_broadcast():
    column, row = torch.zeros(20, 1), torch.zeros(20)
    with pytest.raises(ValueError, match=r"\(20, 1\) and \(20,\); did you mean y.unsqueeze\(-1\)"):
        rmse(column, row)
    with pytest.raises(ValueError, match=r"\(20, 1\) and \(20,\); did you mean y.unsqueeze\(-1\)"):
        picp(column, column, row)
    with pytest.raises(
        ValueError, match=r"samples must be \(S, \*y.shape\), got \(20, 7\) for y of \(20,\); did you mean"
    ):
        crps(torch.zeros(20, 7), row)
    with pytest.raises(ValueError, match=r"samples must be \(S, \*y.shape\), got \(\) for y of \(20,\)"):
        crps(torch.tensor(0.0), row)


def test_missing_values_empty_input_and_crossed_ends_are_named():
    one, nan = torch.ones(2), torch.tensor([0.5, torch.nan])
    with pytest.raises(ValueError, match="mean must not be NaN, got 1 of 2 values"):
        rmse(nan, one)
    with pytest.raises(ValueError, match="y must be finite, got nan"):
        rmse(one, nan)
    with pytest.raises(ValueError, match="samples must be finite, got inf"):
        crps(torch.tensor([[torch.inf, 0.0]]), one)
    with pytest.raises(ValueError, match=r"y is empty, got shape \(0,\)"):
        rmse(torch.empty(0), torch.empty(0))
    with pytest.raises(ValueError, match=r"samples is empty, got shape \(0, 2\)"):
        crps(torch.empty(0, 2), one)
    with pytest.raises(ValueError, match=r"lower must not exceed upper, got \[2, 1\]; did you swap them"):
        interval_score(2 * one, one, one, 0.9)


@pytest.mark.parametrize(
    ("level", "way_out"), [(90, "did you mean 0.9"), (0.0, "0.9 is"), (1.0, "0.9 is"), (-1, "0.9 is")]
)
def test_a_level_that_is_no_coverage_is_an_error(level, way_out):
    with pytest.raises(ValueError, match=f"level must be between 0 and 1, got {level}; {way_out}"):
        interval_score(torch.zeros(2), torch.ones(2), torch.ones(2), level)


def test_whole_number_targets_take_the_type_of_the_prediction(dtype):
    assert rmse(torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([1, 4])).dtype == dtype
    assert rmse(torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([1, 4])).item() == pytest.approx(math.sqrt(2))
