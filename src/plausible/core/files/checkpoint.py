"""Checkpoints: a step number, the states, the kept records, and enough of the configuration to refuse another run's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...weights import tree
from ...weights.tree import Tree
from . import container


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often to write; a path alone means the defaults."""

    path: str | Path
    every_steps: int | None = None
    every_seconds: float = 30.0

    def __post_init__(self):
        if self.every_steps is not None and (not isinstance(self.every_steps, int) or self.every_steps < 1):
            raise ValueError(f"every_steps must be a positive integer or None, got {self.every_steps}")
        if not self.every_seconds >= 0:
            raise ValueError(f"every_seconds must not be negative, got {self.every_seconds}")


class Keeper:
    """Writes checkpoints of one run and reads the last."""

    def __init__(self, setting: str | Path | Checkpoint, configuration: dict[str, Any]):
        self.setting = setting if isinstance(setting, Checkpoint) else Checkpoint(setting)
        self.configuration = configuration
        self._written = time.monotonic()
        self._took = 0.0
        self.wrote = False

    def due(self, done: int) -> bool:
        """Whether to write after `done` steps; writing takes at most a twentieth of the time."""
        if self.setting.every_steps is not None:
            return done % self.setting.every_steps == 0
        return time.monotonic() - self._written >= max(self.setting.every_seconds, 20 * self._took)

    def write(
        self, done: int, trees: Tree, counts: list[Any], plan: dict[str, bool], callbacks: list[Any], stopped: bool
    ) -> None:
        """Write the whole state of a run, atomically."""
        began = time.monotonic()
        manifest = {
            "kind": "checkpoint",
            "done": done,
            "stopped": stopped,  # by a callback: then a resumed run is over, too
            "counts": counts,
            "plan": plan,
            "callbacks": callbacks,
            "configuration": self.configuration,
        }
        container.write(self.setting.path, dict(tree.leaves(trees)), manifest)
        self._written = time.monotonic()
        self._took = self._written - began
        self.wrote = True

    def read(self) -> tuple[Tree, dict[str, Any]] | None:
        """The last checkpoint, or None if there is none yet; one of another configuration is an error."""
        if not Path(self.setting.path).exists():
            return None
        tensors, manifest = container.read(self.setting.path, "checkpoint")
        self.wrote = True
        stored = manifest["configuration"]
        for key, mine in self.configuration.items():
            if stored.get(key) != mine:
                raise ValueError(
                    f"{self.setting.path} is a checkpoint of another run: {key} was {_short(stored.get(key))}, now "
                    f"{_short(mine)}; use another path, or resume=False to start over"
                )
        return tree.from_leaves(tensors), manifest


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
