"""The rate and the ETA that a person is shown, by a clock that the test turns."""

from __future__ import annotations

import io

import pytest

from plausible.core import progress
from plausible.core.progress import Progress


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made.monotonic)
    return made


@pytest.mark.parametrize("first_step", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("resumed_at", [0, 400])
def test_the_eta_is_right_within_a_fifth_after_the_first_tenth(clock, first_step, resumed_at):
    steps, each = 1000, 0.1
    bar = Progress("MAP", resumed_at, steps, shown=False)
    for step in range(resumed_at, steps):
        clock.now += first_step if step == resumed_at else each
        bar.after(step)
        done = step + 1
        if done - resumed_at >= (steps - resumed_at) // 10 and done < steps:
            assert bar.eta(done) == pytest.approx((steps - done) * each, rel=0.2)
            assert bar.rate(done) == pytest.approx(1 / each, rel=0.2)


def test_the_eta_is_right_within_a_fifth_when_steps_vary(clock):
    bar = Progress("MAP", 0, 1000, shown=False)
    for step in range(1000):
        clock.now += 0.05 if step % 2 else 0.15
        bar.after(step)
        if 100 <= step + 1 < 1000:
            assert bar.eta(step + 1) == pytest.approx((999 - step) * 0.1, rel=0.2, abs=0.1)


def test_nothing_is_claimed_before_there_is_anything_to_go_by(clock):
    bar = Progress("MAP", 0, 10, shown=False)
    assert bar.rate(0) is None and bar.eta(0) is None
    bar.after(0)
    assert bar.eta(1) is None


def test_a_terminal_sees_the_method_the_count_and_the_time_left(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    bar = Progress("SWAG", 0, 200, shown=True)
    for step in range(100):
        clock.now += 1.0
        bar.after(step)
        if bar.due():
            bar.draw(step + 1, {"log_joint": -12.5})
    bar.close()
    text = terminal.getvalue()
    assert "SWAG" in text and "100/200" in text and "1:40" in text and "-12.5" in text


def test_without_a_terminal_nothing_is_written(clock, capfd):
    bar = Progress("SWAG", 0, 20, shown=True)
    for step in range(20):
        clock.now += 1.0
        bar.after(step)
        assert not bar.due()
    bar.close()
    out, err = capfd.readouterr()
    assert out == err == ""
