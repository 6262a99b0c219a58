import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from plausible.metrics import aurc, auroc_error

ANSWERS = st.lists(st.tuples(st.integers(0, 3).map(float), st.booleans()), min_size=1, max_size=30)


def as_pair(answers):
    confidence, correct = zip(*answers, strict=True)
    return torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct)


def mean_risk_over_every_tie_break(confidence, correct):
    """Average the risk-coverage area over all orders of answers that sort the confidence downwards."""
    areas = []
    for order in itertools.permutations(range(len(confidence))):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            wrong = [not correct[k] for k in order]
            areas.append(sum(sum(wrong[:k]) / k for k in range(1, len(order) + 1)) / len(order))
    return sum(areas) / len(areas)


def test_aurc_by_hand():
    confidence, correct = torch.tensor([0.9, 0.1, 0.5, 0.7]), torch.tensor([True, False, True, False])
    assert aurc(confidence, correct).item() == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4)


@settings(deadline=None, max_examples=20)
@given(answers=st.lists(st.tuples(st.integers(0, 2).map(float), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_every_way_to_break_ties(answers):
    confidence, correct = as_pair(answers)
    expected = mean_risk_over_every_tie_break(confidence.tolist(), correct.tolist())
    assert aurc(confidence, correct).item() == pytest.approx(expected, abs=1e-12)


def test_a_constant_confidence_has_the_error_rate_as_area():
    assert aurc(torch.full((8,), 0.5), torch.tensor([1, 1, 0, 1, 0, 1, 1, 1])).item() == pytest.approx(0.25)


def test_aurc_is_least_when_every_wrong_answer_comes_last():
    correct = torch.tensor([1, 0, 1, 1, 0])
    perfect = aurc(correct.double(), correct)
    generator = torch.Generator().manual_seed(6)
    others = [aurc(torch.rand(5, generator=generator, dtype=torch.float64), correct) for _ in range(50)]
    assert perfect.item() == pytest.approx((0 + 0 + 0 + 1 / 4 + 2 / 5) / 5)
    assert all(perfect <= other + 1e-12 for other in others)


def test_auroc_error_is_that_of_sklearn(classified):
    probs, y = classified
    confidence, guess = probs.max(1)
    for score in (confidence, (confidence * 10).round()):
        assert auroc_error(score, guess == y).item() == pytest.approx(roc_auc_score(guess == y, score), rel=1e-6)


def test_auroc_error_is_one_when_confidence_separates_and_half_when_it_is_constant():
    correct = torch.tensor([True, False, True])
    assert auroc_error(torch.tensor([0.9, 0.2, 0.8]), correct).item() == 1
    assert auroc_error(torch.tensor([0.1, 0.2, 0.1]), correct).item() == 0
    assert auroc_error(torch.full((3,), 0.7), correct).item() == 0.5


def test_auroc_error_is_nan_when_there_is_nothing_to_separate():
    assert auroc_error(torch.tensor([0.9, 0.2]), torch.tensor([1, 1])).isnan()
    assert auroc_error(torch.tensor([0.9]), torch.tensor([0])).isnan()


@settings(deadline=None, max_examples=40)
@given(answers=ANSWERS, seed=st.integers(0, 1000))
def test_order_of_answers_is_irrelevant_and_negating_confidence_mirrors_the_area(answers, seed):
    confidence, correct = as_pair(answers)
    order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed))
    for metric in (aurc, auroc_error):
        expected = metric(confidence, correct)
        torch.testing.assert_close(metric(confidence[order], correct[order]), expected, equal_nan=True)
        torch.testing.assert_close(metric(confidence.exp(), correct), expected, equal_nan=True)
    torch.testing.assert_close(auroc_error(-confidence, correct), 1 - auroc_error(confidence, correct), equal_nan=True)


def test_wrong_arguments_are_named():
    confidence = torch.tensor([0.5, 0.6])
    for metric in (aurc, auroc_error):
        with pytest.raises(ValueError, match=r"correct must be 0 or 1, got 3; did you mean probs.argmax\(1\) == y"):
            metric(confidence, torch.tensor([3, 1]))
        with pytest.raises(ValueError, match=r"one shape, got \(2,\) and \(2, 1\); did you mean correct.squeeze\(-1\)"):
            metric(confidence, torch.tensor([[1], [0]]))
        with pytest.raises(ValueError, match="confidence must not be NaN"):
            metric(torch.tensor([0.5, torch.nan]), torch.tensor([1, 0]))
        with pytest.raises(ValueError, match="confidence is empty"):
            metric(torch.empty(0), torch.empty(0))
