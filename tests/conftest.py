"""What every test run shares: one thread, a quiet global generator, and no skip in silence."""

import os
import re
from pathlib import Path

import pytest
import torch

# A reason that matches means that something could have been installed or fetched and was not. Skips for what a machine
# cannot have (a GPU, another system) and for what does not apply are listed but never fail a run.
MISSING = re.compile(
    r"could not import|no module named|not installed|PLAUSIBLE_DATA|\bpackages?\b|\bdata ?sets?\b", re.I
)
SEED = 20190606


def pytest_configure(config):
    torch.set_num_threads(1)  # as OMP_NUM_THREADS=1, also where a test is started by hand


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    # Every test starts from one state of the global generator, so that no result depends on the order, nor on what other
    # code drew; and what it draws is nobody else's.
    before = torch.get_rng_state()
    torch.manual_seed(SEED)
    try:
        return (yield)
    finally:
        torch.set_rng_state(before)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets."""
    folder = os.environ.get("PLAUSIBLE_DATA", "")
    if not folder:
        pytest.skip("PLAUSIBLE_DATA is not set: point it at the folder of data sets")
    if not Path(folder).is_dir():
        pytest.skip(f"PLAUSIBLE_DATA is no folder: {folder}")
    return Path(folder)


def pytest_terminal_summary(terminalreporter, config):
    skipped = _skipped(config)
    if not skipped:
        return
    terminalreporter.section(f"{len(skipped)} skipped")
    for test, reason in skipped:
        terminalreporter.line(f"{test}: {reason}")
    missing = [test for test, reason in skipped if MISSING.search(reason)]
    if _in_ci() and missing:
        message = f"FAILED: {len(missing)} skipped for a missing package or data set, which CI must have"
        terminalreporter.line(message, red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker; only the controller has every report
    harmless = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    missing = any(MISSING.search(reason) for _, reason in _skipped(session.config))
    if _in_ci() and missing and exitstatus in harmless:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _skipped(config) -> list[tuple[str, str]]:
    """Every skipped test or file with its reason, expected failures aside."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    reports = reporter.stats.get("skipped", [])
    return sorted({(report.nodeid, _reason(report.longrepr)) for report in reports})


def _reason(longrepr) -> str:
    text = str(longrepr[2]) if isinstance(longrepr, tuple | list) else str(longrepr)
    return text.removeprefix("Skipped: ")
