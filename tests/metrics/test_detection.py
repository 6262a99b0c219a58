import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from plausible.metrics import aupr_ood, auroc_ood, fpr95

METRICS = [auroc_ood, aupr_ood, fpr95]
# Small integers make ties likely, within a group and between the two.
SCORES = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=40)


def as_pair(score_in, score_out):
    return torch.tensor(score_in, dtype=torch.float64), torch.tensor(score_out, dtype=torch.float64)


def one_list(score_in, score_out):
    label = torch.cat([torch.zeros_like(score_in), torch.ones_like(score_out)]).long()
    return label, torch.cat([score_in, score_out])


def strictest_rate(score_in, score_out):
    """The definition by brute force: try every outlier's score as the threshold."""
    label, score = one_list(score_in, score_out)
    rates = [
        (score_in >= threshold).double().mean().item()
        for threshold in score
        if 100 * int((score_out >= threshold).sum()) >= 95 * len(score_out)
    ]
    return min(rates)


@pytest.fixture(params=["continuous", "ties"])
def scores(request, dtype):
    generator = torch.Generator().manual_seed(4)
    score_in = torch.randn(300, generator=generator, dtype=dtype)
    score_out = 1 + 1.5 * torch.randn(170, generator=generator, dtype=dtype)
    return (score_in, score_out) if request.param == "continuous" else (score_in.round(), score_out.round())


def test_auroc_is_that_of_sklearn_and_torchmetrics(scores):
    label, score = one_list(*scores)
    assert auroc_ood(*scores).item() == pytest.approx(roc_auc_score(label, score), rel=1e-6)
    # Torchmetrics squashes scores outside [0, 1] with a sigmoid, which makes new ties; a shift and a scale make none.
    unit = (score - score.min()) / (score.max() - score.min())
    assert auroc_ood(*scores).item() == pytest.approx(binary_auroc(unit, label).item(), rel=1e-5)


def test_aupr_is_the_average_precision_of_sklearn_and_torchmetrics(scores):
    label, score = one_list(*scores)
    assert aupr_ood(*scores).item() == pytest.approx(average_precision_score(label, score), rel=1e-6)
    unit = (score - score.min()) / (score.max() - score.min())
    assert aupr_ood(*scores).item() == pytest.approx(binary_average_precision(unit, label).item(), rel=1e-5)


def test_fpr95_is_read_off_the_roc_curve_of_sklearn(scores):
    label, score = one_list(*scores)
    false_positive, true_positive, _ = roc_curve(label, score, drop_intermediate=False)
    assert fpr95(*scores).item() == pytest.approx(false_positive[true_positive >= 0.95].min(), rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(score_in=SCORES, score_out=SCORES)
def test_small_and_tied_cases_match_the_definitions(score_in, score_out):
    score_in, score_out = as_pair(score_in, score_out)
    label, score = one_list(score_in, score_out)
    wins = (score_out[:, None] > score_in).double() + 0.5 * (score_out[:, None] == score_in).double()
    assert auroc_ood(score_in, score_out).item() == pytest.approx(wins.mean().item(), abs=1e-12)
    assert aupr_ood(score_in, score_out).item() == pytest.approx(average_precision_score(label, score), abs=1e-12)
    assert fpr95(score_in, score_out).item() == pytest.approx(strictest_rate(score_in, score_out), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(score_in=SCORES, score_out=SCORES)
def test_auroc_of_the_negated_score_and_of_the_swapped_groups_is_one_minus_it(score_in, score_out):
    score_in, score_out = as_pair(score_in, score_out)
    area = auroc_ood(score_in, score_out).item()
    assert auroc_ood(-score_in, -score_out).item() == pytest.approx(1 - area, abs=1e-12)
    assert auroc_ood(score_out, score_in).item() == pytest.approx(1 - area, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(score_in=SCORES, score_out=SCORES, seed=st.integers(0, 1000))
def test_only_the_order_of_scores_matters_and_not_that_of_examples(score_in, score_out, seed):
    score_in, score_out = as_pair(score_in, score_out)
    shuffle = numpy.random.default_rng(seed)
    shuffled = [score[torch.from_numpy(shuffle.permutation(len(score)))] for score in (score_in, score_out)]
    for metric in METRICS:
        expected = metric(score_in, score_out)
        torch.testing.assert_close(metric(*shuffled), expected)
        torch.testing.assert_close(metric(score_in.exp(), score_out.exp()), expected)


def test_separated_scores_are_perfect_and_constant_ones_are_chance():
    low, high = torch.zeros(30), torch.ones(10)
    assert [metric(low, high).item() for metric in METRICS] == [1, 1, 0]
    assert [metric(high, low).item() for metric in METRICS] == [0, 0.75, 1]
    assert [metric(low, low[:10]).item() for metric in METRICS] == [0.5, 0.25, 1]


@pytest.mark.parametrize("num_out", [1, 19, 20, 21, 40, 100])
def test_fpr95_may_miss_one_outlier_in_twenty_and_no_more(num_out):
    allowed = num_out // 20
    score_in = torch.zeros(7)
    hidden = torch.tensor([-1.0])
    for missed, expected in ((allowed, 0), (allowed + 1, 1)):
        score_out = torch.cat([hidden.expand(missed), torch.ones(num_out - missed)])
        assert fpr95(score_in, score_out).item() == expected


def test_one_score_each_is_enough():
    assert auroc_ood(torch.tensor([0.1]), torch.tensor([0.2])).item() == 1
    assert auroc_ood(torch.tensor([0.2]), torch.tensor([0.2])).item() == 0.5


def test_infinite_scores_keep_their_order():
    score_in, score_out = torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf, torch.inf, 1.0])
    assert [metric(score_in, score_out).item() for metric in METRICS] == [1, 1, 0]


def test_pixel_maps_are_scored_pixel_by_pixel(scores):
    score_in, score_out = scores
    for metric in METRICS:
        torch.testing.assert_close(metric(score_in.reshape(3, 10, 10), score_out.reshape(17, 10)), metric(*scores))


def test_an_ensembles_detection_differs_from_every_members():
    generator = torch.Generator().manual_seed(5)
    score_in = torch.randn(5, 400, generator=generator)
    score_out = 0.7 + torch.randn(5, 400, generator=generator)
    together = auroc_ood(score_in.mean(0), score_out.mean(0))
    assert all(together > auroc_ood(*pair) + 0.05 for pair in zip(score_in, score_out, strict=True))


@pytest.mark.parametrize("metric", METRICS)
def test_missing_scores_are_an_error_with_a_name(metric):
    good = torch.tensor([0.1, 0.2])
    with pytest.raises(ValueError, match=r"score_out is empty, got shape \(0,\)"):
        metric(good, torch.empty(0))
    with pytest.raises(ValueError, match="score_in must not be NaN, got 1 of 2 values"):
        metric(torch.tensor([0.1, torch.nan]), good)
    with pytest.raises(TypeError, match=r"score_out must be floating point, got torch.int64"):
        metric(good, torch.tensor([1, 2]))
