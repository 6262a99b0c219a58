"""Kept records in files that are mapped into memory, for runs that keep more than memory should hold.

The tensors of a record become rows of tensors whose memory is a file: the system reads and writes what is used, and all
that works with tensors works with them. Beside a checkpoint the files stay, and a resumed run goes on in them. Without one
they have no name, and are gone with the last tensor that shows them.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor


class MappedFolder:
    """A run's files.

    Args:
        checkpoint: The checkpoint that they belong to, if there is one.
    """

    def __init__(self, checkpoint: str | Path | None):
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.path: Path | None = None

    def create(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A new tensor of zeros in a file; all of its room is taken at once, since a full disk cannot be told later."""
        if self.path is None:
            self.path = self._begun()
        file, size = self.path / name, torch.Size(shape).numel() * dtype.itemsize
        try:
            with open(file, "wb") as handle:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(handle.fileno(), 0, size)
                else:
                    handle.truncate(size)
        except OSError as error:
            folder = self.path.parent
            shutil.rmtree(self.path, ignore_errors=True)
            raise OSError(
                f"{size:,} bytes of kept draws find no room in {folder} ({error.strerror}); keep fewer with thin=, or let "
                "checkpoint= (without one, the environment's TMPDIR) lie on a larger disk"
            ) from error
        tensor = self.open(name, shape, dtype)
        if self.checkpoint is None:
            with contextlib.suppress(OSError):  # where a file in use cannot be unlinked, it goes when Python ends
                file.unlink()
        return tensor

    def open(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor that a file is."""
        assert self.path is not None
        file, count = self.path / name, torch.Size(shape).numel()
        if not file.is_file() or file.stat().st_size != count * dtype.itemsize:
            raise FileNotFoundError(f"{file}, where the run kept its draws, is missing or damaged; start over")
        return torch.from_file(str(file), shared=True, size=count, dtype=dtype).reshape(shape)

    def sync(self, name: str) -> None:
        """Write what the system has not written yet, so that a checkpoint promises nothing that is not on the disk."""
        if self.path is not None and (self.path / name).exists():
            with open(self.path / name, "rb+") as handle:
                os.fsync(handle.fileno())

    def remove_others(self) -> None:
        """Remove what earlier runs with this checkpoint's path left: the checkpoint that named it is replaced."""
        if self.checkpoint is not None:
            for other in self.checkpoint.parent.glob(f"{glob.escape(self.checkpoint.name)}.draws-*"):
                if other != self.path:
                    shutil.rmtree(other, ignore_errors=True)

    def _begun(self) -> Path:
        if self.checkpoint is None:
            folder = Path(tempfile.mkdtemp(prefix="plausible-draws-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
        folder = self.checkpoint.parent / f"{self.checkpoint.name}.draws-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        return folder
