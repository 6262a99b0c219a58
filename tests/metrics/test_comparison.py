import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.metrics import accuracy_score

from plausible.metrics import agreement, total_variation


@pytest.fixture
def two(dtype):
    generator = torch.Generator().manual_seed(13)
    probs, reference = (2 * torch.randn(2, 200, 5, generator=generator, dtype=torch.float64)).softmax(-1).to(dtype)
    return probs, (probs + reference) / 2


def test_agreement_is_the_accuracy_against_the_references_guess(two):
    probs, reference = two
    expected = accuracy_score(reference.argmax(1), probs.argmax(1))
    assert 0.3 < expected < 0.95
    assert agreement(probs, reference).item() == pytest.approx(expected, rel=1e-6)


def test_total_variation_is_half_the_city_block_distance(two):
    probs, reference = two
    expected = cdist(probs.double(), reference.double(), "cityblock").diagonal().mean() / 2
    assert total_variation(probs, reference).item() == pytest.approx(expected, rel=1e-5)


def test_equal_predictions_agree_and_disjoint_ones_are_one_apart():
    certain = torch.eye(3)
    assert agreement(certain, certain).item() == 1
    assert total_variation(certain, certain).item() == 0
    assert agreement(certain, certain.roll(1, 0)).item() == 0
    assert total_variation(certain, certain.roll(1, 0)).item() == 1


def test_both_are_symmetric_and_blind_to_the_order_of_examples(two):
    probs, reference = two
    order = torch.randperm(200, generator=torch.Generator().manual_seed(14))
    for metric in (agreement, total_variation):
        torch.testing.assert_close(metric(reference, probs), metric(probs, reference))
        torch.testing.assert_close(metric(probs[order], reference[order]), metric(probs, reference))


def test_pixels_are_examples(two):
    probs, reference = two
    images = [p.reshape(2, 10, 10, 5).movedim(-1, 1) for p in two]
    for metric in (agreement, total_variation):
        torch.testing.assert_close(metric(*images), metric(probs, reference))


def test_one_example_and_one_class_work():
    assert agreement(torch.ones(1, 1), torch.ones(1, 1)).item() == 1
    assert total_variation(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])).item() == 0.25


def test_an_ensemble_is_closer_to_the_truth_than_its_members_are():
    generator = torch.Generator().manual_seed(15)
    truth = torch.randn(300, 4, generator=generator)
    members = (truth + torch.randn(6, 300, 4, generator=generator)).softmax(-1)
    together = total_variation(members.mean(0), truth.softmax(1))
    assert all(together < total_variation(member, truth.softmax(1)) - 0.02 for member in members)


def test_the_argument_at_fault_is_named():
    good = torch.full((2, 2), 0.5)
    for metric in (agreement, total_variation):
        with pytest.raises(ValueError, match=r"reference must lie in \[0, 1\], got -1"):
            metric(good, torch.tensor([[-1.0, 2.0], [0.5, 0.5]]))
        with pytest.raises(ValueError, match=r"probs must sum to one over axis 1, got a sum of 1.5"):
            metric(torch.full((2, 2), 0.75), good)
        with pytest.raises(ValueError, match=r"probs and reference must have one shape, got \(2, 2\) and \(1, 2\)"):
            metric(good, good[:1])
