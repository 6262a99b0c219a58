import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy

from plausible.metrics import accuracy, brier, nll

PROPER_SCORES = [accuracy, nll, brier]


def test_accuracy_is_that_of_sklearn_and_torchmetrics(classified):
    probs, y = classified
    assert accuracy(probs, y).item() == pytest.approx(accuracy_score(y, probs.argmax(1)), rel=1e-6)
    torch.testing.assert_close(
        accuracy(probs, y).float(), multiclass_accuracy(probs, y, num_classes=4, average="micro"), rtol=1e-6, atol=0
    )


def test_nll_is_the_log_loss_of_sklearn_and_the_cross_entropy_of_torch(classified):
    probs, y = classified
    exact = torch.nn.functional.normalize(probs.double(), p=1)  # sklearn warns about the rounding of float32
    assert nll(probs, y).item() == pytest.approx(log_loss(y, exact, labels=range(4)), rel=1e-5)
    torch.testing.assert_close(nll(probs, y), torch.nn.functional.cross_entropy(probs.log(), y))


def test_brier_is_the_squared_distance_to_the_one_hot_label(classified):
    probs, y = classified
    one_hot = torch.nn.functional.one_hot(y, 4)
    torch.testing.assert_close(brier(probs, y), torch.nn.functional.mse_loss(probs, one_hot.to(probs.dtype)) * 4)


def test_two_class_brier_is_twice_that_of_sklearn():
    from sklearn.metrics import brier_score_loss

    p = torch.tensor([0.1, 0.7, 0.4, 1.0, 0.0], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0, 0])
    assert brier(torch.stack([1 - p, p], 1), y).item() == pytest.approx(2 * brier_score_loss(y, p), rel=1e-12)


@pytest.mark.parametrize(("metric", "right", "wrong"), [(accuracy, 1, 0), (nll, 0, math.inf), (brier, 0, 2)])
def test_certain_predictions_get_the_best_or_the_worst_score(metric, right, wrong):
    probs = torch.eye(3)
    assert metric(probs, torch.tensor([0, 1, 2])).item() == right
    assert metric(probs, torch.tensor([1, 2, 0])).item() == wrong


def test_one_impossible_label_makes_the_mean_nll_infinite():
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert nll(probs, torch.tensor([0, 1])).item() == math.inf


def test_a_zero_that_rounding_made_negative_is_an_infinite_nll_and_not_nan():
    assert nll(torch.tensor([[1 + 1e-7, -1e-7]]), torch.tensor([1])).item() == math.inf


def test_one_class_is_always_right():
    probs, y = torch.ones(3, 1), torch.zeros(3, dtype=torch.long)
    assert [metric(probs, y).item() for metric in PROPER_SCORES] == [1, 0, 0]


def test_one_example_is_scored_alone():
    probs, y = torch.tensor([[0.2, 0.8]], dtype=torch.float64), torch.tensor([0])
    assert accuracy(probs, y).item() == 0
    assert nll(probs, y).item() == pytest.approx(-math.log(0.2))
    assert brier(probs, y).item() == pytest.approx(2 * 0.8**2)


def test_among_equally_probable_classes_the_first_counts():
    assert accuracy(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1])).item() == 0.5


def test_brier_keeps_the_digits_of_a_nearly_certain_prediction():
    miss = 2.0**-20
    assert brier(torch.tensor([[1 - miss, miss]]), torch.tensor([0])).item() == pytest.approx(2 * miss**2, rel=1e-6)


def test_an_ensembles_score_differs_from_every_members_and_from_their_mean():
    generator = torch.Generator().manual_seed(3)
    members = torch.randn(5, 200, 3, generator=generator, dtype=torch.float64).softmax(-1)
    y = torch.randint(3, (200,), generator=generator)
    for metric in (nll, brier):
        alone = torch.stack([metric(member, y) for member in members])
        together = metric(members.mean(0), y)
        assert (alone - together).abs().min() > 1e-3
        assert together < alone.mean() - 1e-3  # both are convex in the probabilities (Jensen)


@pytest.mark.parametrize("metric", PROPER_SCORES)
def test_pixels_are_examples(metric, segmented):
    probs, y = segmented
    y = y.where(y != 255, 0)
    rows = torch.stack([probs[n, :, i, j] for n in range(3) for i in range(6) for j in range(5)])
    torch.testing.assert_close(metric(probs, y), metric(rows, y.flatten()))


@pytest.mark.parametrize("metric", PROPER_SCORES)
def test_ignored_pixels_count_nothing(metric, segmented):
    probs, y = segmented
    kept = [(probs[n, :, i, j], y[n, i, j]) for n, i, j in (y != 255).nonzero().tolist()]
    expected = metric(torch.stack([row for row, _ in kept]), torch.stack([label for _, label in kept]))
    broken = probs.masked_fill((y == 255).unsqueeze(1), torch.nan)
    torch.testing.assert_close(metric(probs, y, ignore_index=255), expected)
    torch.testing.assert_close(metric(broken, y, ignore_index=255), expected)


@pytest.mark.parametrize("metric", PROPER_SCORES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), num_examples=st.integers(1, 30), num_classes=st.integers(1, 6))
def test_the_order_of_examples_is_irrelevant(metric, seed, num_examples, num_classes):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(num_examples, num_classes, generator=generator, dtype=torch.float64).softmax(1)
    y = torch.randint(num_classes, (num_examples,), generator=generator)
    order = torch.randperm(num_examples, generator=generator)
    torch.testing.assert_close(metric(probs, y), metric(probs[order], y[order]))


def test_nll_and_brier_have_the_slopes_of_their_formulas():
    probs = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(nll(probs, torch.tensor([1])), probs)
    torch.testing.assert_close(slope, torch.tensor([[0, -2.0, 0]], dtype=torch.float64))
    (slope,) = torch.autograd.grad(brier(probs, torch.tensor([1])), probs)
    torch.testing.assert_close(slope, torch.tensor([[0.4, -1.0, 0.6]], dtype=torch.float64))
