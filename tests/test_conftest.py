import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

def test_passes():
    pass

def test_of_a_package():
    pytest.importorskip("a_package_nobody_has")

def test_of_data(data_dir):
    pass

@pytest.mark.skip(reason="needs a GPU")
def test_of_a_device():
    pass
"""

# Skips are the subject, and importing the real one takes seconds in every process.
TORCH = """
def set_num_threads(n): pass
def get_rng_state(): pass
def set_rng_state(state): pass
def manual_seed(seed): pass
"""


def run_pytest(folder: Path, suite: str, ci: str, *options: str) -> subprocess.CompletedProcess:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "conftest.py")
    (folder / "test_suite.py").write_text(suite)
    (folder / "torch.py").write_text(TORCH)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PLAUSIBLE"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    environment = inherited | {"CI": ci, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_in_ci_a_skip_for_something_missing_fails_the_run_and_is_listed(tmp_path, options):
    done = run_pytest(tmp_path, SUITE, "true", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_of_a_package: could not import 'a_package_nobody_has'" in done.stdout
    assert "test_of_data: PLAUSIBLE_DATA is not set" in done.stdout
    assert "test_of_a_device: needs a GPU" in done.stdout
    assert "FAILED: 2 skipped for a missing package or data set" in done.stdout


def test_outside_ci_skips_are_listed_and_pass(tmp_path):
    done = run_pytest(tmp_path, SUITE, "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 skipped" in done.stdout
    assert "test_of_data: PLAUSIBLE_DATA is not set" in done.stdout


def test_in_ci_a_skip_for_a_device_passes(tmp_path):
    only_a_device = 'import pytest\n\n@pytest.mark.skip(reason="needs a GPU")\ndef test_of_a_device(): pass\n'
    assert run_pytest(tmp_path, only_a_device, "true").returncode == 0


def test_in_ci_a_whole_file_skipped_for_a_missing_package_fails_under_workers(tmp_path):
    whole_file = 'import pytest\n\npytest.importorskip("a_package_nobody_has")\n\ndef test_never_runs(): pass\n'
    done = run_pytest(tmp_path, whole_file, "true", "-n", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_suite.py: could not import 'a_package_nobody_has'" in done.stdout
