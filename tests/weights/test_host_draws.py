"""Draws by NumPy: to the bit those by torch, wherever both are possible."""

import numpy as np
import pytest
import torch

from plausible.weights import host_draws
from plausible.weights.rng import Keys, run_key
from plausible.weights.threefry import threefry


def drawn(*, by_torch, n, dtype=torch.float32, key=None, step=7, monkeypatch):
    if by_torch:
        monkeypatch.setattr(host_draws, "is_at_hand", lambda *tensors, counters: False)
        monkeypatch.setattr("plausible.weights.threefry.is_at_hand", lambda *tensors, counters: False)
    rng = Keys(run_key(-5) if key is None else key, torch.tensor(step), call=3)
    found = {"normal": rng.normal(n, dtype), "uniform": rng.uniform(n, dtype), "key": rng.key()}
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 752, 65_537, 65_536 * 2 + 3])
def test_numpy_draws_the_bits_that_torch_draws(n, dtype, monkeypatch):
    numpy, torch_s = (drawn(by_torch=t, n=n, dtype=dtype, monkeypatch=monkeypatch) for t in (False, True))
    for name, numbers in numpy.items():
        assert numbers.dtype == torch_s[name].dtype
        assert torch.equal(numbers, torch_s[name]), name


@pytest.mark.parametrize("step", [0, 2**31 - 1, 2**31, 2**32 + 5, 2**40])
@pytest.mark.parametrize("word", [-(2**31), -1, 0, 2**31 - 1])
def test_words_wrap_around_as_torch_s_do(word, step, monkeypatch):
    key = torch.tensor([word, word], dtype=torch.int32)
    numpy, torch_s = (drawn(by_torch=t, n=9, key=key, step=step, monkeypatch=monkeypatch) for t in (False, True))
    for name, numbers in numpy.items():
        assert torch.equal(numbers, torch_s[name]), name


@pytest.mark.parametrize("n", [1, 10, 752, 4096])
def test_step_after_step_draws_what_lone_steps_draw(n, monkeypatch):
    # Over the end of what is drawn ahead, through the wrap of a key, and back to a step of the past.
    key = torch.tensor([-20, 77], dtype=torch.int32)
    for step in (*range(2 * host_draws.AHEAD + 5), 3, 4, 40):
        numpy, torch_s = (drawn(by_torch=t, n=n, key=key, step=step, monkeypatch=monkeypatch) for t in (False, True))
        for name, numbers in numpy.items():
            assert torch.equal(numbers, torch_s[name]), (name, step)


def test_numbers_are_made_for_several_steps_at_once_where_steps_follow_one_another():
    made = []

    def law(key, call, n, steps):
        made.append(steps)
        return np.zeros((steps, n), np.float32)

    numbers = host_draws.Drawn(law)
    for step in range(2 + host_draws.AHEAD):
        numbers((step, 5), 0, 9)
    assert made == [1, host_draws.AHEAD, host_draws.AHEAD]
    for step in (100, 50, 0):
        numbers((step, 5), 0, 9)
    numbers((1, 5), 0, host_draws.SHORT + 1)
    assert made[3:] == [1, 1, 1, 1]


def test_a_draw_has_memory_of_its_own():
    key = run_key(0)
    for step in (0, 1, 2, 2, 1):
        drawn = Keys(key, torch.tensor(step)).normal(5)
        assert drawn.abs().min() > 0
        drawn.zero_()


def test_what_is_remembered_is_bounded():
    numbers = host_draws.Drawn(lambda key, call, n, steps: np.zeros((steps, n), np.float32))
    for mode in range(3 * host_draws.REMEMBERED):
        numbers((0, mode), 0, 9)
    assert len(numbers._ahead) <= host_draws.REMEMBERED


def test_what_is_traced_or_on_another_device_is_not_at_hand():
    plain = torch.zeros(2, dtype=torch.int32)
    assert host_draws.is_at_hand(plain, counters=3)
    assert not host_draws.is_at_hand(plain, plain.to("meta"), counters=3)
    torch.vmap(lambda row: _assert_not_at_hand(row))(torch.zeros(2, 2))
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not host_draws.is_at_hand(plain, counters=3)


def _assert_not_at_hand(row):
    assert not host_draws.is_at_hand(row, counters=3)
    return row


def test_many_threads_share_long_draws_out_by_torch(monkeypatch):
    plain = torch.zeros(2, dtype=torch.int32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert host_draws.is_at_hand(plain, counters=host_draws.BLOCK)
    assert not host_draws.is_at_hand(plain, counters=host_draws.BLOCK + 1)


def test_counters_of_any_order_are_encrypted():
    key = (torch.tensor(5, dtype=torch.int32), torch.tensor(-9, dtype=torch.int32))
    forward, _ = threefry(key, torch.arange(4, dtype=torch.int32), 1)
    backward, _ = threefry(key, torch.arange(3, -1, -1, dtype=torch.int32), 1)
    assert torch.equal(forward.flip(0), backward)
