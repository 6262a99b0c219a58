"""Numbers drawn by a kernel on a GPU, against those of torch's own operations."""

import pytest
import torch

from plausible.weights import device_draws
from plausible.weights.rng import NORMAL, UNIFORM, Keys, run_key

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU, and there is none here")


@cuda
@pytest.mark.parametrize("n", [1, 2, 1023, 100_001])
def test_numbers_of_the_kernel_are_those_of_the_words(n):
    keys = Keys(run_key(3, device="cuda"), torch.tensor(7, device="cuda"))
    assert device_draws.is_on_device(keys._key, keys.step)
    plain = UNIFORM.anywhere(keys._words, 2, n, torch.float32)
    assert torch.equal(device_draws.draw(keys._key, keys.step, 2, n, normal=False), plain)
    plain = NORMAL.anywhere(keys._words, 2, n, torch.float32)
    torch.testing.assert_close(device_draws.draw(keys._key, keys.step, 2, n, normal=True), plain, rtol=1e-5, atol=1e-5)


@cuda
def test_keys_draw_by_the_kernel_and_step_by_step():
    key = run_key(0, device="cuda")
    steps = [Keys(key, torch.tensor(s, device="cuda")).normal(1000) for s in (0, 1)]
    on_cpu = [Keys(key.cpu(), torch.tensor(s)).normal(1000) for s in (0, 1)]
    for mine, theirs in zip(steps, on_cpu, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)
    assert not torch.equal(*steps)


@cuda
@pytest.mark.parametrize("call", [0, 1, 2**31 - 1])
def test_a_key_of_its_own_is_the_one_that_a_cpu_has(call):
    on_cpu = Keys(run_key(3), torch.tensor(7), call).key()
    own = Keys(run_key(3, device="cuda"), torch.tensor(7, device="cuda"), call).key()
    assert torch.equal(own.cpu(), on_cpu)


def test_a_cpu_draws_without_it():
    assert not device_draws.is_on_device(run_key(0))
