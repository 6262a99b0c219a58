"""The first step whose log joint is not finite, in runs of any length."""

import math

import pytest
import torch

from plausible.core.finiteness import TOGETHER, FirstNotFinite

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", [(), (0,), (5,), (TOGETHER - 1,), (TOGETHER,), (3 * TOGETHER + 2, TOGETHER + 7)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_wrong_step_is_found(device, wrong, bad):
    watch, shown = FirstNotFinite(), torch.zeros(3, device=device)
    for step in range(10, 4 * TOGETHER + 10):  # as a resumed run counts
        shown.fill_(-1.5)  # in memory that the next step writes over
        if step - 10 in wrong:
            shown[1] = bad
        watch.see(step, shown)
    assert watch.found() == (10 + min(wrong) if wrong else -1)
    assert watch.found() == watch.found()


@pytest.mark.parametrize("device", DEVICES)
def test_it_may_be_asked_at_any_time(device):
    watch = FirstNotFinite()
    assert watch.found() == -1
    for step, value in enumerate([0.0, 1.0, math.nan, 2.0, math.inf]):
        watch.see(step, torch.tensor([value], device=device))
        assert watch.found() == (-1 if step < 2 else 2)
