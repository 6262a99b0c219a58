"""Importing the library is quick, since it imports little."""

from __future__ import annotations

import subprocess
import sys

HEAVY = [
    "matplotlib",
    "sklearn",
    "scipy",
    "transformers",
    "gpytorch",
    "rich",
    "typer",
    "tensorboard",
    "pandas",
    "arviz",
    "accelerate",
    "pytorch_lightning",
]
COMPILER = ["torch._dynamo", "torch._inductor", "torch.utils.tensorboard"]


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    path = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_library_imports_nothing_heavy_beyond_torch():
    everything = "import torch, plausible\nfor name in plausible.__all__: getattr(plausible, name)"
    added = modules_after(everything) - modules_after("import torch")
    assert "plausible.core.fit" in added, "the library was not imported at all"
    heavy = [m for m in added if m.split(".")[0] in HEAVY or any(m == c or m.startswith(c + ".") for c in COMPILER)]
    assert not heavy
