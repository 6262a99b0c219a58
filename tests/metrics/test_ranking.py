import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plausible.metrics.ranking import area_under_roc, average_over_ties


@settings(deadline=None, max_examples=40)
@given(scores=st.lists(st.tuples(st.integers(0, 5).map(float), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_the_statistic_of_mann_and_whitney(scores):
    score, positive = (torch.tensor(column) for column in zip(*scores, strict=True))
    ours = area_under_roc(score, positive)
    num_pairs = int(positive.sum()) * int((~positive).sum())
    if num_pairs == 0:
        assert ours.isnan()
    else:
        statistic = scipy.stats.mannwhitneyu(score[positive], score[~positive], method="asymptotic").statistic
        torch.testing.assert_close(ours, torch.tensor(statistic / num_pairs, dtype=torch.float64))


def test_entries_without_ties_keep_their_flag_and_tied_ones_share_it():
    ordered = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.9, 0.9])
    flags = torch.tensor([True, True, False, False, True, False])
    third = 1 / 3
    expected = torch.tensor([1, third, third, third, 0.5, 0.5], dtype=torch.float64)
    torch.testing.assert_close(average_over_ties(ordered, flags), expected)
