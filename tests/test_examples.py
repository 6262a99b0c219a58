"""The examples run, as a user would start them, and leave what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = ("planets_constrain",)
EXAMPLES = Path(__file__).parents[1] / "examples"
PICTURES = {
    "quickstart": "moons.png",
    "regression": "regression.png",
    "pretrained": None,
    "optimiser": None,
    "planets": "planets.png",
    "planets_constrain": "planets_constrain.png",
}
ARGUMENTS = {"planets_constrain": ["12"]}  # draws: enough to see that it runs
PNG = b"\x89PNG\r\n\x1a\n"


def start(example: str, folder: Path) -> str:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "MPLCONFIGDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py"), str(folder), *ARGUMENTS.get(example, [])],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PICTURES]
)
def test_an_example_runs_and_draws_what_it_promises(example, tmp_path):
    told = start(example, tmp_path)
    assert told.strip()
    if PICTURES[example]:
        picture = (tmp_path / PICTURES[example]).read_bytes()
        assert picture.startswith(PNG) and len(picture) > 20_000
    else:
        assert "same predictions: True" in told


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PICTURES)
