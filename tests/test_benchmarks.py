"""Benchmarks can be started, their clocks count what they say, and their files say where the numbers come from."""

import argparse
import importlib
import json
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.fixture
def benchmarks(monkeypatch):
    """The folder on the path, as for `python benchmarks/spine.py`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_finds_all_that_it_imports(script, benchmarks):
    runpy.run_path(str(ROOT / "benchmarks" / script), run_name="not main")


class Clock:
    """Each look at it is one second after the last; what is timed may let more pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


def test_the_median_of_calls_leaves_out_those_that_warm_up(benchmarks, monkeypatch):
    timing, clock = benchmarks("timing"), Clock()
    monkeypatch.setattr(timing.seconds, "__defaults__", (clock,))
    lengths = iter([1000.0, 100.0, 5.0, 90.0, 7.0])
    assert timing.median_seconds(lambda: clock.pass_by(next(lengths)), 3, warm_up=2) == 1.0 + 7.0


def test_a_step_timer_divides_the_time_between_two_steps(benchmarks, monkeypatch):
    timing, clock = benchmarks("timing"), Clock()
    monkeypatch.setattr(timing.time, "perf_counter", clock)
    timer = timing.StepTimer(2, 6)
    for step in range(9):
        clock.pass_by(0.5)
        timer({"step": step})
    assert timer.milliseconds == pytest.approx(1e3 * (4 * 0.5 + 1.0) / 4)


def test_steps_that_take_turns_are_timed_apart(benchmarks, monkeypatch):
    timing, clock = benchmarks("timing"), Clock()
    monkeypatch.setattr(timing.time, "perf_counter", clock)
    paired = timing.Interleaved(lambda: clock.pass_by(3.0))
    for _ in range(3):
        clock.pass_by(10.0)
        paired({})
    assert paired.mine == [11e3, 11e3] and paired.theirs == [4e3] * 3


def test_rows_are_stored_after_every_case_under_their_origin(benchmarks, tmp_path):
    files, path = benchmarks("result_file"), tmp_path / "new" / "rows.json"
    seen = []

    def second(rounds):
        seen.append(json.loads(path.read_text())["rows"])
        return [{"case": "second", "rounds": rounds}]

    cases = {"first": lambda rounds: [{"case": "first", "rounds": rounds}], "second": second, "third": None}
    options = argparse.Namespace(only="first,second", out=str(path))
    files.measure(cases, options, files.origin("python x.py", "abc", "a machine"), 4)
    stored = json.loads(path.read_text())
    assert seen == [[{"case": "first", "rounds": 4}]]
    assert stored["rows"] == [{"case": "first", "rounds": 4}, {"case": "second", "rounds": 4}]
    assert list(stored) == ["command", "commit", "device", "torch", "rows"]
    assert (stored["command"], stored["commit"], stored["torch"]) == ("python x.py", "abc", torch.__version__)
    assert torch.cuda.is_available() or stored["device"] == "a machine"
