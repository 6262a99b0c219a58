"""What a run changes about Python and torch is as it was when the run is over."""

import signal

import pytest
import torch

from plausible.core.surroundings import current_device, deterministic_algorithms, interrupts


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)], ids=["off", "errors", "warnings"])
def test_what_torch_was_told_about_deterministic_algorithms_holds_again(before):
    enabled, warns = before
    torch.use_deterministic_algorithms(enabled, warn_only=warns)
    try:
        with deterministic_algorithms(True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_handler_that_python_did_not_install_is_left_alone(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with interrupts() as interrupted:
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) is before
        assert not interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_on_a_gpu_makes_it_the_current_one(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device", asked.append)
    current_device(torch.device("cpu"))
    assert asked == []
    current_device(torch.device("cuda", 1))
    assert asked == [torch.device("cuda", 1)]
