import torch

from plausible.metrics.accumulation import share, wide


def test_a_share_of_many_flags_is_exact_in_the_answers_type():
    flags = torch.ones(2**24 + 3, dtype=torch.bool)
    flags[0] = False
    assert share(flags, torch.float64).item() == (2**24 + 2) / (2**24 + 3)
    assert share(flags, torch.float16).item() == 1.0


def test_wide_is_float64_where_there_is_one():
    assert wide(torch.tensor([1, 2])).dtype == torch.float64
    assert wide(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float64
