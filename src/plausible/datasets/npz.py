"""Arrays from .npz files, of which nothing is ever run."""

import zipfile
import zlib
from pathlib import Path

import numpy as np


def read_npz(path: Path, *names: str) -> list[np.ndarray]:
    """The named arrays of a file; a ValueError says which it has if one is missing."""
    try:
        # Opened here: numpy leaves a file that it cannot read open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is no .npz file")
            missing = [name for name in names if name not in file]
            if missing:
                raise ValueError(f"it has no array {missing[0]!r}, only {', '.join(file.files)}")
            return [file[name] for name in names]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} cannot be read: {error}; fetch it again") from None
