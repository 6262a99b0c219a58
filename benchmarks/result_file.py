"""The file that a benchmark leaves: where its numbers come from, and its rows as they are measured."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def parser_of_cases(cases: Mapping[str, object]) -> argparse.ArgumentParser:
    """Which cases, and what `add_file_options` adds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(cases))
    add_file_options(parser)
    return parser


def add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out")
    parser.add_argument("--commit", help="where the tree travels without its history")


def commit(told: str | None, *options: str) -> str:
    """What was told, or what git says of the tree at hand."""
    asked = ["git", "rev-parse", *options, "HEAD"]
    return told or subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def device_name(on_cpu: str) -> str:
    """The GPU's, or what the benchmark says of a machine without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else on_cpu


def machine_and_threads() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def origin(command: str, told: str | None, on_cpu: str) -> dict[str, Any]:
    """What stands above the rows."""
    return {
        "command": command,
        "commit": commit(told, "--short"),
        "device": device_name(on_cpu),
        "torch": torch.__version__,
    }


def measure(
    cases: Mapping[str, Callable[..., list[dict]]], options: argparse.Namespace, above: dict, *given: Any
) -> None:
    """Run the cases that were asked for and store their rows after each, so that a run may be stopped."""
    result = {**above, "rows": []}
    for chosen in options.only.split(","):
        result["rows"] += cases[chosen](*given)
        store(result, options.out)


def store(result: Mapping[str, Any], path: str | Path | None) -> None:
    """Write the file, if one was asked for."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
