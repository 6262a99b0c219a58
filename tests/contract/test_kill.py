"""Runs that are killed without warning, or stopped by Ctrl-C, and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import contract_cases
from tests.contract_cases import CASES, assert_same_bits, fit

import plausible as pl

ROOT = Path(__file__).parents[2]


def start(name: str, path: Path) -> subprocess.Popen:
    """A run in a process of its own that writes a checkpoint after every step; returns once the first is there."""
    places = [str(ROOT), *sys.path]
    process = subprocess.Popen(
        [sys.executable, contract_cases.__file__, name, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in places if p)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read().decode()
        time.sleep(0.002)
    return process


def check_a_kill(number: int, folder: Path) -> None:
    chance = random.Random(number)
    name = list(CASES)[number % len(CASES)]
    path = folder / "run.ckpt"
    process = start(name, path)
    time.sleep(chance.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before the kill"
    process.stderr.close()
    setting = pl.Checkpoint(path, every_steps=1)
    assert_same_bits(fit(name, checkpoint=setting, resume=True), fit(name))
    assert [p.name for p in folder.iterdir()] == [path.name], "a temporary file was left behind"


@pytest.mark.parametrize("number", range(3))
def test_a_killed_run_resumes_to_the_same_bits(number, tmp_path):
    check_a_kill(number + 3, tmp_path)  # an ensemble, SWAG and MultiSWAG; the slow test takes every case in turn


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_twenty_killed_runs_resume_to_the_same_bits(number, tmp_path):
    check_a_kill(number + 100, tmp_path)


def test_ctrl_c_leaves_a_checkpoint_that_resumes_to_the_same_bits(tmp_path):
    path = tmp_path / "run.ckpt"
    process = start("HMC", path)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode != 0
    last = told.decode().strip().splitlines()[-1]
    assert last.startswith("KeyboardInterrupt: stopped after step") and "resume=True" in last and str(path) in last
    assert_same_bits(fit("HMC", checkpoint=pl.Checkpoint(path, every_steps=1), resume=True), fit("HMC"))
