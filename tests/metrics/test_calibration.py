import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from plausible.metrics import ace, calibration_curve, ece


def two_classes(confidence, correct, dtype=torch.float64):
    """Predictions of class 0 with the given confidence (at least one half), and labels to make them right or wrong."""
    p = torch.tensor(confidence, dtype=dtype)
    return torch.stack([p, 1 - p], 1), 1 - torch.tensor(correct)


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 1000])
def test_ece_is_that_of_torchmetrics_away_from_the_edges(classified, bins):
    probs, y = classified
    theirs = multiclass_calibration_error(probs, y, num_classes=4, n_bins=bins)
    torch.testing.assert_close(ece(probs, y, bins=bins), theirs.to(probs.dtype), rtol=1e-4, atol=1e-6)


def test_a_bin_contains_its_right_edge_and_torchmetrics_left_one():
    # 0.75 is an edge of 4 bins and exact in binary. Ours: {0.75, 0.6} share a bin; torchmetrics': {0.75, 0.9} do.
    probs, y = two_classes([0.75, 0.6, 0.9], [1, 0, 0])
    assert ece(probs, y, bins=4).item() == pytest.approx((abs(1 - 1.35) + 0.9) / 3)
    theirs = multiclass_calibration_error(probs, y, num_classes=2, n_bins=4)
    assert theirs.item() == pytest.approx((0.6 + abs(1 - 1.65)) / 3, rel=1e-6)


def test_edges_that_are_not_exact_in_binary_still_belong_to_the_bin_on_their_left(dtype):
    probs, y = two_classes([0.6, 0.8, 1.0], [1, 1, 1], dtype)
    assert calibration_curve(probs, y, bins=5).count.tolist() == [0, 0, 1, 1, 1]


def test_certain_and_right_is_calibrated_and_certain_and_wrong_is_off_by_one():
    for metric in (ece, ace):
        assert metric(torch.eye(3), torch.tensor([0, 1, 2])).item() == 0
        assert metric(torch.eye(3), torch.tensor([1, 2, 0])).item() == 1


def test_one_class_and_one_example_work():
    for metric in (ece, ace):
        assert metric(torch.ones(4, 1), torch.zeros(4, dtype=torch.long)).item() == 0
        assert metric(*two_classes([0.7], [0])).item() == pytest.approx(0.7)


def test_ace_is_the_weighted_gap_of_equally_full_groups_of_sorted_examples(classified):
    probs, y = classified
    confidence, guess = probs.double().max(1)
    order = numpy.argsort(confidence.numpy())
    gap = ((guess == y).double() - confidence).numpy()[order]
    for bins in (1, 4, 10):  # these divide 500, so there is only one way to cut
        groups = numpy.array_split(gap, bins)
        expected = sum(abs(group.sum()) for group in groups) / 500
        assert ace(probs, y, bins=bins).item() == pytest.approx(expected, rel=1e-5)


def test_with_more_bins_than_examples_each_example_has_its_own():
    probs, y = two_classes([0.6, 0.7, 0.9], [1, 0, 1])
    assert ace(probs, y, bins=15).item() == pytest.approx((0.4 + 0.7 + 0.1) / 3)


def test_ace_shares_the_right_answers_of_tied_examples_between_bins():
    probs, y = two_classes([0.75] * 4, [1, 1, 0, 0])
    # Cut in file order the two bins would be all right and all wrong, and the error 0.5.
    assert ace(probs, y, bins=2).item() == pytest.approx(0.25)


@pytest.mark.parametrize("metric", [ece, ace])
@settings(deadline=None, max_examples=40)
@given(
    answers=st.lists(st.tuples(st.integers(5, 10), st.integers(0, 1)), min_size=1, max_size=20),
    bins=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_the_order_of_examples_is_irrelevant_even_with_ties(metric, answers, bins, seed):
    probs, y = two_classes([tenths / 10 for tenths, _ in answers], [correct for _, correct in answers])
    order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed))
    error = metric(probs, y, bins=bins)
    torch.testing.assert_close(metric(probs[order], y[order], bins=bins), error)
    # No binning hides the gap of the whole, and none exceeds the gap of each example alone.
    confidence, guess = probs.max(1)
    gap = (guess == y).double() - confidence
    assert gap.mean().abs() - 1e-12 <= error <= gap.abs().mean() + 1e-12


def test_the_curve_has_the_means_of_each_bin_and_nan_where_a_bin_is_empty():
    probs, y = two_classes([0.55, 0.6, 0.95], [1, 0, 1])
    curve = calibration_curve(probs, y, bins=4)
    assert curve.count.tolist() == [0, 0, 2, 1]
    assert curve.confidence[:2].isnan().all() and curve.accuracy[:2].isnan().all()
    torch.testing.assert_close(curve.confidence[2:], torch.tensor([0.575, 0.95], dtype=torch.float64))
    torch.testing.assert_close(curve.accuracy[2:], torch.tensor([0.5, 1.0], dtype=torch.float64))


def test_the_curve_is_that_of_sklearn(classified):
    from sklearn.calibration import calibration_curve as sklearn_curve

    probs, y = classified
    confidence, guess = probs.max(1)
    accuracy, mean_confidence = sklearn_curve((guess == y).numpy(), confidence.numpy(), n_bins=10)
    curve = calibration_curve(probs, y, bins=10)
    full = curve.count > 0
    numpy.testing.assert_allclose(curve.accuracy[full], accuracy, rtol=1e-5)
    numpy.testing.assert_allclose(curve.confidence[full], mean_confidence, rtol=1e-5)


def test_an_ensembles_calibration_differs_from_every_members():
    generator = torch.Generator().manual_seed(3)
    members = (3 * torch.randn(5, 300, 3, generator=generator)).softmax(-1)
    y = torch.randint(3, (300,), generator=generator)
    for metric in (ece, ace):
        together = metric(members.mean(0), y)
        assert all(together < metric(member, y) - 0.05 for member in members)  # averaging random guesses humbles them


def test_ignored_pixels_count_nothing(segmented):
    probs, y = segmented
    keep = y != 255
    rows = probs.movedim(1, -1)[keep]
    for metric in (ece, ace):
        torch.testing.assert_close(metric(probs, y, ignore_index=255), metric(rows, y[keep]))
    assert calibration_curve(probs, y, ignore_index=255).count.sum() == keep.sum()


def test_a_bin_of_more_than_two_to_the_24_pixels_is_not_cut_short():
    # A running float32 sum of ones stops growing there, and would report 2**24 / 18,000,000 = 0.93.
    probs = torch.tensor([1.0, 0.0]).expand(18_000_000, 2)
    y = torch.ones(1, dtype=torch.uint8).expand(18_000_000)
    assert ece(probs, y).item() == 1


@pytest.mark.parametrize("bins", [0, -3, 2.5, True])
def test_a_number_of_bins_that_is_none_is_an_error(bins):
    for metric in (ece, ace, calibration_curve):
        with pytest.raises(ValueError, match=f"bins must be a positive integer, got {bins}"):
            metric(torch.eye(2), torch.tensor([0, 1]), bins=bins)
